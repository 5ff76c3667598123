package checktest

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
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// fixtureWant is the content of want.json. Facts are compared only for the given keys.
type fixtureWant struct {
	Findings      []finding.Finding `json:"findings,omitempty"`
	Marginal      bool              `json:"marginal,omitempty"`      // all findings are
	Certain       []string          `json:"certain,omitempty"`       // those that one run proves, as kind/name
	NotApplicable bool              `json:"notApplicable,omitempty"` // the check does not apply
	// subjects without a result, as kind/name
	Unknown []string `json:"unknown,omitempty"`
	// part of the error if there is no result at all
	Error string `json:"error,omitempty"`
}

// RunFixture runs a fresh check on the machine of a file, which is of one kind: ok, bad or broken.
func RunFixture(t *testing.T, check detect.Check, kind, file string) {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	h, moments, want := FixtureHost(t, archive)
	if sick := len(want.Findings) > 0; sick != (kind == "bad") && kind != "broken" {
		t.Fatalf("%s cases have findings: %v", kind, sick)
	}
	var findings []finding.Finding
	for _, m := range moments {
		m.Come(t, h)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		findings, err = check.Observe(ctx, h)
		cancel()
	}
	compareFindings(t, want, findings)
	compareError(t, want, err)
}

func compareFindings(t *testing.T, want fixtureWant, got []finding.Finding) {
	t.Helper()
	slices.SortFunc(got, finding.Compare)
	var certain []string
	for i := range got {
		if err := got[i].Problem(); err != nil {
			t.Error(err)
		}
		if got[i].Certain {
			certain = append(certain, got[i].Subject.String())
		}
		got[i].Certain = false
		if got[i].BelowRaise != want.Marginal {
			t.Errorf("%s: marginal = %v, want %v", got[i].Subject, got[i].BelowRaise, want.Marginal)
		}
		got[i].BelowRaise = false
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
	if diff := cmp.Diff(want.Certain, certain); diff != "" {
		t.Errorf("certain (-want +got):\n%s", diff)
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

// moment holds the changes of a machine some time after the first run.
type moment struct {
	after time.Duration
	files []txtar.File
}

var laterName = regexp.MustCompile(`^\+([0-9a-z.]+)/(.+)$`)

// FixtureHost returns the machine of an archive, the moments at which the check runs, and the expected result of the
// last run.
func FixtureHost(t *testing.T, archive *txtar.Archive) (*host.Host, []moment, fixtureWant) {
	t.Helper()
	paths := discover.DefaultPaths()
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

// Come applies the changes of that moment to h.
func (m moment) Come(t *testing.T, h *host.Host) {
	t.Helper()
	h.Clock = func() finding.Timestamp {
		return finding.Timestamp{Wall: time.Date(2026, 11, 21, 2, 0, 0, 0, time.UTC).Add(m.after), Boot: "fixture",
			SinceBoot: time.Hour + m.after}
	}
	for _, file := range m.files {
		if client, ok := strings.CutPrefix(file.Name, "clients/"); ok {
			open := fixtureClients()[client]
			if open == nil {
				t.Fatalf("there is no client %s", client)
			}
			open(t, h, file)
			continue
		}
		WriteFile(t, h.Files.Root, file)
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

// WriteFile applies a file of an archive: a file, a link (name@), or a removal (name!).
func WriteFile(t *testing.T, root string, file txtar.File) {
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
