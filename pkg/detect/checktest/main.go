// Package checktest runs checks against machines made of files, and fakes what is not in files.
package checktest

import (
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/host/probe"
)

// Main runs the tests of a package of checks and returns the exit status. The test binary is also the child that
// probes.
func Main(m *testing.M) int {
	probe.ProbeMain()
	remove := ownedtest.Temp()
	defer remove()
	return m.Run()
}
