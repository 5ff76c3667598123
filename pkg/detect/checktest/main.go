// Package checktest runs checks against machines made of files, and fakes the answers that are not files.
package checktest

import (
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

// Main runs the tests of a package of checks and returns the exit status.
func Main(m *testing.M) int {
	remove := ownedtest.Temp()
	defer remove()
	return m.Run()
}
