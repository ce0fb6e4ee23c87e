#!/usr/bin/env bash
# Builds the book from docs/ into target/book and checks it: all links between files and to headings resolve, and the
# reference pages match the code. Links to other sites are not fetched.
#
#   docs.sh         checks and builds
#   docs.sh check   only checks; needs nothing but Python
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/lib.sh"

python3 "$ROOT/hack/docs.py" check
python3 "$ROOT/hack/crates-svg.py" check
[ "${1:-}" != check ] || exit 0

mdbook=$(cargo_tool mdbook 0.5.4 --no-default-features --features search)
work_up
cp "$ROOT/docs/book.toml" "$WORK"
python3 "$ROOT/hack/docs.py" stage "$WORK/src"
rm -rf "$TARGET/book"
"$mdbook" build --dest-dir "$TARGET/book" "$WORK"
python3 "$ROOT/hack/docs.py" html "$TARGET/book"
echo "the book is in $TARGET/book/index.html"
