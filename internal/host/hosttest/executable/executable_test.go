package executable_test

import (
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
)

// A written program can be run at once, whatever parallel tests start meanwhile.
func TestWrittenProgramIsNotBusy(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			name := filepath.Join(dir, string(rune('a'+i)))
			for range 50 {
				if err := executable.Write(name, []byte("#!/bin/sh\n")); err != nil {
					t.Error(err)
					return
				}
				if err := exec.CommandContext(t.Context(), name).Run(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
