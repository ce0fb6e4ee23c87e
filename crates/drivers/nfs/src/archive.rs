//! Archives of a directory tree: tar, tar.gz and tar.zst.
