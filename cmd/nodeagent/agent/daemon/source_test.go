package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// newSource returns a source whose file contains text.
func newSource(t *testing.T, text string) Source {
	t.Helper()
	dir := t.TempDir()
	s := Source{File: filepath.Join(dir, "config.yaml"), LastGood: filepath.Join(dir, "state", "last-good.yaml")}
	write(t, s.File, text)
	return s
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFallbacksReleaseNothing(t *testing.T) {
	s := newSource(t, "nodeName: mine\nremediate:\n  mode: \"on\"\n  kinds:\n    cgroup: \"on\"\n")
	s.Over = func(c config.Config) config.Config { c.ServiceAccountDir = "/over"; return c }
	e, err := s.read()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.keep(e); err != nil {
		t.Fatal(err)
	}
	write(t, s.File, "nodeNam: typo\n")
	if _, err := s.read(); err == nil {
		t.Fatal("a wrong configuration is taken")
	}
	var got []string
	for _, f := range s.fallbacks() {
		got = append(got, strings.Join([]string{f.from, f.cfg.NodeName, f.cfg.ServiceAccountDir,
			string(f.cfg.Remediate.Mode), string(f.cfg.Remediate.Kinds[object.Cgroup])}, ","))
		if f.file {
			t.Errorf("%s is called what the operator wants", f.from)
		}
	}
	if diff := cmp.Diff([]string{"the last good configuration,mine,/over,dry-run,dry-run",
		"the defaults,,/over,dry-run,"}, got); diff != "" {
		t.Error(diff)
	}
	if e.cfg.Remediate.Kinds[object.Cgroup] != release.On {
		t.Error("the dry run of a fallback has changed the revision that it is made from")
	}
}

func TestFallbacks(t *testing.T) {
	for name, test := range map[string]struct {
		lastGood string
		want     []string
	}{
		"nothing was kept":                         {"", []string{"the defaults"}},
		"what was kept is not understood any more": {"keyOfAnotherVersion: 1\n", []string{"the defaults"}},
		"torn file":                                {"nodeName: \"a", []string{"the defaults"}},
		"empty file":                               {"\n", []string{"the last good configuration", "the defaults"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSource(t, "bad")
			if test.lastGood != "" {
				if err := s.keep(revision{data: []byte(test.lastGood), file: true}); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for _, f := range s.fallbacks() {
				got = append(got, f.from)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			s.LastGood = ""
			if len(s.fallbacks()) > 0 {
				t.Error("a strict source falls back")
			}
		})
	}
}

func TestAFallbackIsNeverKept(t *testing.T) {
	s := newSource(t, "bad")
	for _, f := range s.fallbacks() {
		if err := s.keep(f); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(s.LastGood); !os.IsNotExist(err) {
		t.Errorf("kept: %v", err)
	}
}

func TestConfigured(t *testing.T) {
	s := newSource(t, "")
	c := &configState{source: s}
	reason := func() string {
		var reasons []string
		for _, f := range c.findings() {
			reasons = append(reasons, string(f.Severity)+" "+f.Reason)
		}
		return strings.Join(reasons, ",")
	}
	expect := func(when, want string) {
		t.Helper()
		if got := reason(); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	first, err := s.read()
	if err != nil {
		t.Fatal(err)
	}
	c.force(first)
	expect("in force", "")

	write(t, s.File, "nodeName: another\n")
	expect("changed just now", "")
	if invalid, unloaded := c.trouble(); invalid != nil || unloaded == nil {
		t.Errorf("status must show it at once: %v, %v", invalid, unloaded)
	}
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(s.File, long, long); err != nil {
		t.Fatal(err)
	}
	expect("changed and forgotten", "info AgentConfigNotLoaded")

	second, err := s.read()
	if err != nil {
		t.Fatal(err)
	}
	c.refuse(second, errors.New("no such kubeconfig"))
	expect("valid, but could not be put in force", "warning AgentConfigInvalid")
	write(t, s.File, "nodeName: [\n")
	expect("wrong", "warning AgentConfigInvalid")
	if err := os.Remove(s.File); err != nil {
		t.Fatal(err)
	}
	expect("gone", "warning AgentConfigInvalid")
	write(t, s.File, "")
	expect("as it was", "")

	held := first
	held.file, held.from = false, "the last good configuration"
	c.force(held)
	if c.unchanged(first) {
		t.Error("a fallback that says the same as the file is still one that releases nothing")
	}
}
