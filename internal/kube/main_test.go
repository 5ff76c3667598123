package kube

import (
	"os"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

// Kubelet's files are trusted only if root alone can change them.
func TestMain(m *testing.M) {
	remove := ownedtest.Temp()
	code := m.Run()
	remove()
	os.Exit(code)
}
