//go:build tools

// Package snapshotter pins the version of the upstream programs that tests compare with ours. build.sh builds them.
package snapshotter

import (
	_ "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter"
	_ "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller"
)
