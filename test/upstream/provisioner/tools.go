//go:build tools

// Package provisioner pins the version of an upstream program that tests compare with ours. build.sh builds it.
package provisioner

import _ "github.com/kubernetes-csi/external-provisioner/v5/cmd/csi-provisioner"
