//go:build tools

// Package kwok pins the simulator of kubelets that the answer key runs.
package kwok

import _ "sigs.k8s.io/kwok/cmd/kwok"
