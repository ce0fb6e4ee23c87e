//go:build tools

// Package hostpath pins the version of an upstream program that tests compare with ours. build.sh builds it.
package hostpath

import _ "github.com/kubernetes-csi/csi-driver-host-path/cmd/hostpathplugin"
