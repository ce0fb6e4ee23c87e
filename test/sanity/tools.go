//go:build tools

// Package sanity pins the version of csi-sanity that tests our drivers. run.sh builds and runs it.
package sanity

import _ "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity"
