package detect

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A fixture is one machine as a tree of files, testdata/<check ID>/<ok|bad|broken>*.txtar:
//
//	-- proc/1/mountinfo --          a file below the root of the machine
//	-- sys/dev/block/8:0@ --        a symbolic link; its content is the target
//	-- sys/block/sda! --            is not there any more, with all that is below it
//	-- doors/kubelet-pods.json --   what kubelet answers: a list of pods; all doors are in fixtureDoors
//	-- doors/kubelet-process.json -- the running kubelet, as host.Process
//	-- doors/paths.json --          where things are, beside the defaults: fields of host.Paths
//	-- doors/probe.json --          what probes answer, by path; {"hang": true} does not
//	-- +30s/proc/diskstats --       what has changed 30 seconds later, when the same check looks once more
//	-- want.json --                 what the last look must see; the first one is that of a fresh check
//
// The comment above the first file tells what the case is about. It is 2026-11-21 02:00 there, one hour after boot.

// fixtureWant is the content of want.json. Facts are compared for the keys that are given.
type fixtureWant struct {
	Findings      []finding.Finding `json:"findings,omitempty"`
	Marginal      bool              `json:"marginal,omitempty"`      // all findings are
	NotApplicable bool              `json:"notApplicable,omitempty"` // there is nothing of this kind
	Unknown       []string          `json:"unknown,omitempty"`       // subjects of which nothing could be told, as kind/name
	Error         string            `json:"error,omitempty"`         // part of the error when nothing could be told at all
}

// conversing are checks whose evidence is not in files: their own tests play the other side, and have the three kinds of
// cases.
var conversing = []string{
	"kubelet-health", "runtime-health", "csi-registration", "critical-daemonsets", "dns", "kube-proxy", "apiserver-reachability",
	"kernel-modules", "last-panic",
}

func TestFixtures(t *testing.T) {
	for _, check := range Checks(DefaultSettings(), Aids{}) {
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
						runFixture(t, fresh(t, check.ID), kind, file)
					})
				}
			}
		})
	}
}

// fixtureFiles returns the cases of a check of one kind, or of all, in the one folder of its name.
func fixtureFiles(id, kind string) ([]string, error) {
	return filepath.Glob(filepath.Join("testdata", id, kind+"*.txtar"))
}

// fresh returns a check that has seen nothing yet.
func fresh(t *testing.T, id string) Check {
	t.Helper()
	for _, check := range Checks(DefaultSettings(), Aids{}) {
		if check.ID == id {
			return check
		}
	}
	t.Fatalf("no check %s", id)
	return Check{}
}

// runFixture looks with a check that has seen nothing yet at the machine of a file, which is of one kind: ok, bad or broken.
func runFixture(t *testing.T, check Check, kind, file string) {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	h, moments, want := fixtureHost(t, archive)
	if sick := len(want.Findings) > 0; sick != (kind == "bad") && kind != "broken" {
		t.Fatalf("%s cases have findings: %v", kind, sick)
	}
	var findings []finding.Finding
	for _, m := range moments {
		m.come(t, h)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		findings, err = check.Run(ctx, h)
		cancel()
	}
	compareFindings(t, want, findings)
	compareError(t, want, err)
}

// TestDoc: each check tells people what it reads, why, what it finds and what may look like it; and finds nothing else.
func TestDoc(t *testing.T) {
	for _, check := range Checks(DefaultSettings(), Aids{}) {
		t.Run(check.ID, func(t *testing.T) {
			d := check.Doc
			if check.Summary == "" || check.Advice == "" || len(d.Reads) == 0 || d.Why == "" || len(d.Faults) == 0 || d.FalseAlarms == "" {
				t.Errorf("summary, advice, reads, why, faults and false alarms must be told: %+v", d)
			}
			fatal := false
			told := map[string]bool{}
			for _, f := range d.Faults {
				told[f.Reason] = true
				fatal = fatal || f.Severity == finding.Fatal
				if f.Reason == "" || !f.Severity.Valid() || f.When == "" {
					t.Errorf("fault %+v", f)
				}
			}
			if fatal != (check.Condition.Type != "") {
				t.Errorf("can be fatal: %v, condition %q", fatal, check.Condition.Type)
			}
			compareReasons(t, check.ID, told)
		})
	}
}

// compareReasons compares what a check says that it finds with what its cases find.
func compareReasons(t *testing.T, id string, told map[string]bool) {
	files, err := fixtureFiles(id, "")
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(conversing, id) || id == kernelLogID { // the rules have their own lines
		return
	}
	shown := map[string]bool{}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, _, want := fixtureHost(t, archive)
		for _, f := range want.Findings {
			shown[f.Reason] = true
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(told)), slices.Sorted(maps.Keys(shown))); diff != "" {
		t.Errorf("reasons (-told +in testdata):\n%s", diff)
	}
}

func compareFindings(t *testing.T, want fixtureWant, got []finding.Finding) {
	t.Helper()
	slices.SortFunc(got, finding.Compare)
	for i := range got {
		if err := got[i].Problem(); err != nil {
			t.Error(err)
		}
		if got[i].Marginal != want.Marginal {
			t.Errorf("%s: marginal = %v, want %v", got[i].Subject, got[i].Marginal, want.Marginal)
		}
		got[i].Marginal = false
		if i >= len(want.Findings) {
			continue
		}
		for key := range got[i].Facts {
			if _, wanted := want.Findings[i].Facts[key]; !wanted {
				delete(got[i].Facts, key)
			}
		}
		if len(got[i].Facts) == 0 {
			got[i].Facts = nil
		}
	}
	if diff := cmp.Diff(want.Findings, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func compareError(t *testing.T, want fixtureWant, err error) {
	t.Helper()
	_, notApplicable := errors.AsType[*finding.NotApplicableError](err)
	partial, isPartial := errors.AsType[*finding.PartialError](err)
	var unknown []string
	if isPartial {
		for subject := range partial.Subjects {
			unknown = append(unknown, subject.String())
		}
		slices.Sort(unknown)
	}
	if notApplicable != want.NotApplicable {
		t.Errorf("not applicable = %v, want %v (%v)", notApplicable, want.NotApplicable, err)
	}
	if diff := cmp.Diff(want.Unknown, unknown); diff != "" {
		t.Errorf("unknown subjects (-want +got):\n%s\n%v", diff, err)
	}
	blind := err != nil && !notApplicable && !isPartial
	if blind != (want.Error != "") || blind && !strings.Contains(err.Error(), want.Error) {
		t.Errorf("error = %v, want %q", err, want.Error)
	}
}

// moment is what a machine becomes some time after the first look.
type moment struct {
	after time.Duration
	files []txtar.File
}

var laterName = regexp.MustCompile(`^\+([0-9a-z.]+)/(.+)$`)

// fixtureHost returns the machine that an archive stands for, the moments at which it is looked at, and what the last look
// must see.
func fixtureHost(t *testing.T, archive *txtar.Archive) (*host.Host, []moment, fixtureWant) {
	t.Helper()
	paths := host.DefaultPaths()
	paths.InitPID = 1
	h := &host.Host{NodeName: "fixture", Paths: paths, Files: host.Files{Root: t.TempDir()}}
	var want fixtureWant
	hasWant := false
	moments := map[time.Duration]*moment{0: {}}
	for _, file := range archive.Files {
		if file.Name == "want.json" {
			hasWant = true
			strictJSON(t, file, &want)
			continue
		}
		var after time.Duration
		if m := laterName.FindStringSubmatch(file.Name); m != nil {
			var err error
			if after, err = time.ParseDuration(m[1]); err != nil {
				t.Fatalf("%s: %v", file.Name, err)
			}
			file.Name = m[2]
		}
		if moments[after] == nil {
			moments[after] = &moment{after: after}
		}
		moments[after].files = append(moments[after].files, file)
	}
	if !hasWant {
		t.Fatal("no want.json")
	}
	var inOrder []moment
	for _, after := range slices.Sorted(maps.Keys(moments)) {
		inOrder = append(inOrder, *moments[after])
	}
	return h, inOrder, want
}

// come makes h what it is at that moment.
func (m moment) come(t *testing.T, h *host.Host) {
	t.Helper()
	h.Clock = func() finding.Stamp {
		return finding.Stamp{Wall: time.Date(2026, 11, 21, 2, 0, 0, 0, time.UTC).Add(m.after), Boot: "fixture", Up: time.Hour + m.after}
	}
	for _, file := range m.files {
		if door, ok := strings.CutPrefix(file.Name, "doors/"); ok {
			open := fixtureDoors()[door]
			if open == nil {
				t.Fatalf("there is no door %s", door)
			}
			open(t, h, file)
			continue
		}
		layOut(t, h.Files.Root, file)
	}
}

func strictJSON(t *testing.T, file txtar.File, into any) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(string(file.Data)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		t.Fatalf("%s: %v", file.Name, err)
	}
}

func layOut(t *testing.T, root string, file txtar.File) {
	t.Helper()
	name := filepath.Join(root, file.Name)
	if gone, ok := strings.CutSuffix(name, "!"); ok {
		if err := os.RemoveAll(gone); err != nil {
			t.Fatal(err)
		}
		return
	}
	err := os.MkdirAll(filepath.Dir(name), 0o755)
	if link, ok := strings.CutSuffix(name, "@"); ok && err == nil {
		err = os.Symlink(strings.TrimSpace(string(file.Data)), link)
	} else if err == nil {
		err = os.WriteFile(name, file.Data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
