//! Entry points for the fuzz targets in `fuzz/`. Not part of the API.

use std::convert::Infallible;

use http::{Request, Response};
use tonic::body::Body;
use tower::Service;

use crate::Driver;

/// The driver's services as they are served on a socket, without the socket and without reflection.
pub fn service(
    driver: Driver,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send> {
    crate::server::services(driver)
}
