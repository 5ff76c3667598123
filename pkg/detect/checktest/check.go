// Package checktest runs checks against machines made of files, and fakes the answers that are not files.
package checktest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// StateStore keeps values like the agent's store.
type StateStore map[string][]byte

// Load implements detect.StateStore.
func (m StateStore) Load(key string) ([]byte, bool) { value, ok := m[key]; return value, ok }

// Save implements detect.StateStore.
func (m StateStore) Save(key string, value []byte) { m[key] = value }

// WriteHostFile writes a file below the root of the machine, with the folders above it.
func WriteHostFile(t *testing.T, files host.Files, name, text string) {
	t.Helper()
	path := files.Path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// IsNotApplicable reports whether a check does not apply.
func IsNotApplicable(err error) bool {
	_, ok := errors.AsType[*finding.NotApplicableError](err)
	return ok
}

// Pause waits a moment for an effect of another process that cannot be awaited otherwise.
func Pause(t *testing.T) {
	t.Helper()
	select {
	case <-t.Context().Done():
	case <-time.After(25 * time.Millisecond):
	}
}

// AwaitError runs the check until its error is as wanted.
func AwaitError(t *testing.T, check detect.Check, h *host.Host, wanted func(error) bool) {
	t.Helper()
	var err error
	for range 2400 {
		if _, err = check.Run(t.Context(), h); wanted(err) {
			return
		}
		Pause(t)
	}
	t.Fatalf("got error %v", err)
}

// Expect runs a check and fails unless it finds exactly these: see Reasons.
func Expect(t testing.TB, check detect.Check, h *host.Host, want ...string) {
	t.Helper()
	found, err := check.Run(t.Context(), h)
	if diff := cmp.Diff(want, Reasons(found)); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

// Reasons returns subject=reason of each finding, with marks if it is not fatal or only marginal.
func Reasons(found []finding.Finding) []string {
	var all []string
	for _, f := range found {
		text := f.Subject.String() + "=" + f.Reason
		if f.Severity != finding.Fatal {
			text += " " + string(f.Severity)
		}
		if f.BelowRaise {
			text += " marginal"
		}
		all = append(all, text)
	}
	return all
}

// AwaitFindings runs the check until its findings are want.
func AwaitFindings(t *testing.T, check detect.Check, h *host.Host, want []string) []finding.Finding {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		found, err := check.Run(ctx, h)
		if cmp.Equal(want, Reasons(found)) {
			return found
		}
		select {
		case <-ctx.Done():
			t.Fatalf("want %v, got %v, error %v", want, Reasons(found), err)
		case <-tick.C:
		}
	}
}
