package checks

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

// A fixture is one machine as a tree of files, testdata/<check ID>/<ok|bad|broken>*.txtar:
//
//	-- proc/1/mountinfo --          a file below the root of the machine
//	-- sys/dev/block/8:0@ --        a symbolic link; its content is the target
//	-- sys/block/sda! --            removes it with its whole tree
//	-- clients/kubelet-pods.json --   the answer of kubelet: a list of pods; all clients are in fixtureClients
//	-- clients/kubelet-process.json -- the running kubelet, as host.Process
//	-- clients/paths.json --          paths other than the defaults: fields of host.Paths
//	-- clients/probe.json --          the answers of probes, by path; {"hang": true} is none
//	-- +30s/proc/diskstats --       changes 30 seconds later, when the same check runs again
//	-- want.json --                 the result of the last run; the first one is that of a fresh check
//
// The comment above the first file describes the case, and has a line "Source: " if it is recorded or copied: see
// sources_test.go. The time of the machine is 2026-11-21 02:00, one hour after boot.

// conversing are checks whose evidence is not in files: their own tests fake the other side, and have the three kinds
// of cases.
var conversing = []string{
	"kubelet-health", "runtime-health", "csi-registration", "critical-daemonsets", "daemonset-hang", "dns", "kube-proxy",
	"apiserver-reachability",
	"kernel-modules", "last-panic",
}

func TestFixtures(t *testing.T) {
	need.Nothing(t)
	for _, check := range Checks(DefaultSettings(), Deps{Sources: &detect.StateSources{}}) {
		if slices.Contains(conversing, check.ID) {
			continue
		}
		t.Run(check.ID, func(t *testing.T) {
			for _, kind := range []string{"ok", "bad", "broken"} {
				files, err := fixtureFiles(check.ID, kind)
				if err != nil || len(files) == 0 {
					t.Errorf("no testdata/%s/%s*.txtar, or in two folders: each check has such cases", check.ID, kind)
				}
				for _, file := range files {
					t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
						c := fresh(t, check.ID)
						c.Suggest = nil // goes by the reason alone: TestSuggestedActions
						checktest.RunFixture(t, c, kind, file)
					})
				}
			}
		})
	}
}

// fixtureFiles returns the cases of a check of one kind, or of all, in the one folder of its name, which is beside
// the check.
func fixtureFiles(id, kind string) ([]string, error) {
	var found []string
	for _, dir := range []string{"../*", "../*/*"} {
		files, err := filepath.Glob(filepath.Join(dir, "testdata", id, kind+"*.txtar"))
		if err != nil || len(files) > 0 && len(found) > 0 {
			return nil, err
		}
		found = append(found, files...)
	}
	return found, nil
}

// fresh returns a check before its first run.
func fresh(t *testing.T, id string) detect.Check {
	t.Helper()
	for _, check := range Checks(DefaultSettings(), Deps{Sources: &detect.StateSources{}}) {
		if check.ID == id {
			return check
		}
	}
	t.Fatalf("no check %s", id)
	return detect.Check{}
}

// TestDoc: each check documents its sources, reason, findings and false alarms, and has no undocumented findings.
func TestDoc(t *testing.T) {
	for _, check := range Checks(DefaultSettings(), Deps{Sources: &detect.StateSources{}}) {
		t.Run(check.ID, func(t *testing.T) {
			d := check.Doc
			if check.Summary == "" || check.Advice == "" || len(d.Reads) == 0 || d.Why == "" || len(d.Faults) == 0 ||
				d.FalseAlarms == "" {
				t.Errorf("summary, advice, reads, why, faults and false alarms must be set: %+v", d)
			}
			if text := fmt.Sprint(check.Summary, check.Advice, d); strings.Contains(text, "TODO") {
				t.Errorf("not written yet: %s", text)
			}
			fatal := false
			documented := map[string]bool{}
			for _, f := range d.Faults {
				documented[f.Reason] = true
				fatal = fatal || f.Severity == finding.Fatal
				if f.Reason == "" || !f.Severity.Valid() || f.When == "" {
					t.Errorf("fault %+v", f)
				}
			}
			if fatal != (check.Condition.Type != "") {
				t.Errorf("can be fatal: %v, condition %q", fatal, check.Condition.Type)
			}
			compareReasons(t, check.ID, documented)
		})
	}
}

// compareReasons compares the documented reasons of a check with those of its fixtures.
func compareReasons(t *testing.T, id string, documented map[string]bool) {
	files, err := fixtureFiles(id, "")
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(conversing, id) || id == kernellog.ID { // the rules have their own lines
		return
	}
	found := map[string]bool{}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, _, want := checktest.FixtureHost(t, archive)
		for _, f := range want.Findings {
			found[f.Reason] = true
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(found))); diff != "" {
		t.Errorf("reasons (-documented +in testdata):\n%s", diff)
	}
}
