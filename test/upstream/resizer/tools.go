//go:build tools

// Package resizer pins the version of an upstream program that tests compare with ours. build.sh builds it.
package resizer

import _ "github.com/kubernetes-csi/external-resizer/cmd/csi-resizer"
