package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/pkg/detect/npd"
)

// TestFromNPDSaysNothingOfWhatItCouldNotRead: "the agent finds all by itself" is only said of files that were read.
func TestFromNPDSaysNothingOfWhatItCouldNotRead(t *testing.T) {
	const all = "finds all of this by itself"
	for name, test := range map[string]struct {
		read config.Monitors
		says bool
	}{
		"nothing is broken":   {config.Monitors{}, true},
		"a file is not there": {config.Monitors{Broken: []error{errors.New("no such file")}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := printTranslation(&out, test.read, npd.Translation{}); err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(out.String(), all); got != test.says {
				t.Errorf("says so: %v, want %v:\n%s", got, test.says, out.String())
			}
		})
	}
}
