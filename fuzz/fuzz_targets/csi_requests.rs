//! CSI requests: bytes that are decoded as the message of any RPC, in sequences, on a driver in memory.
//!
//! Promise: the driver never panics, and the code of every error describes the problem of the request. INTERNAL, UNKNOWN and
//! DATA_LOSS mean a bug in the driver, so no request may cause them, except bytes that are not a message.

#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use tonic::Code;
use wharf_fuzz::csi::{METHODS, call};
use wharf_fuzz::{api, pieces};

const MOST_REQUESTS: usize = 16;

fuzz_target!(|data: &[u8]| -> Corpus {
    // The backend, which is that of the SDK's tests, panics on purpose if it is asked for this volume.
    if data.windows(5).any(|word| word == b"panic") {
        return Corpus::Reject;
    }
    let requests = || {
        pieces(data)
            .take(MOST_REQUESTS)
            .map(|(method, message)| (METHODS[method as usize % METHODS.len()], message))
    };
    thread_local!(static RUNTIME: tokio::runtime::Runtime = api::runtime());
    let responses = RUNTIME.with(|runtime| runtime.block_on(call(requests())));
    for ((method, message), (code, reason)) in requests().zip(responses) {
        let is_ours = matches!(code, Code::Internal | Code::Unknown | Code::DataLoss);
        assert!(!is_ours || reason.contains("decode"), "{method} {message:?}: {code:?} {reason}");
    }
    Corpus::Keep
});
