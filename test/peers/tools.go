//go:build tools

// Package peers pins what the benchmarks compare the agent with.
package peers

import _ "k8s.io/node-problem-detector/cmd/nodeproblemdetector"
