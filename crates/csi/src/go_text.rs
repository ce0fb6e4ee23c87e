//! gRPC errors in the text of Go programs. Kubernetes' events, conditions and metrics contain this text, and users and
//! alerts match on it.

use tonic::Code;

/// The name of a code in Go: `Canceled`, `DeadlineExceeded`.
pub fn go_code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// A gRPC error as Go prints it. A message that may contain secrets has to be redacted first.
pub fn go_error_text(code: Code, message: &str) -> String {
    format!("rpc error: code = {} desc = {message}", go_code_name(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_printed_like_go() {
        for (code, text) in [
            (Code::Cancelled, "rpc error: code = Canceled desc = x"),
            (Code::DeadlineExceeded, "rpc error: code = DeadlineExceeded desc = x"),
            (Code::Ok, "rpc error: code = OK desc = x"),
        ] {
            assert_eq!(go_error_text(code, "x"), text);
        }
        // Only these two are spelled differently in Rust.
        for code in (2..=16).map(Code::from_i32) {
            assert_eq!(go_code_name(code), format!("{code:?}"));
        }
    }
}
