package main

import (
	"path/filepath"
	"testing"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
)

// The agent's socket is found in the configuration even if the rest of the file is invalid.
func TestSocketOfAnInvalidConfiguration(t *testing.T) {
	for text, want := range map[string]string{
		"socket: /run/x.sock\n":                       "/run/x.sock",
		"socket: /run/x.sock\nnoSuchKey: 1\n":         "/run/x.sock",
		"socket: /run/x.sock\nremediate: {mode: 7}\n": "/run/x.sock",
		"noSuchKey: 1\n":                              config.Default().Socket,
		"socket: [\n":                                 config.Default().Socket,
	} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		write(t, file, text)
		if got := (&options{configFile: file}).socket(t.Context()); got != want {
			t.Errorf("%q: %s", text, got)
		}
	}
}
