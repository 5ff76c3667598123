package detect

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A fixture is one machine as a tree of files, testdata/<check ID>/<ok|bad|broken>*.txtar:
//
//	-- proc/1/mountinfo --          a file below the root of the machine
//	-- sys/dev/block/8:0@ --        a symbolic link; its content is the target
//	-- doors/kubelet-pods.json --   what kubelet answers: a list of pods
//	-- doors/probe.json --          what probes answer, by path; {"hang": true} does not
//	-- want.json --                 what one look by a fresh check must see
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
var conversing = []string{"kubelet-health", "runtime-health", "csi-registration", "critical-daemonsets"}

func TestFixtures(t *testing.T) {
	for _, check := range Checks(DefaultSettings(), Aids{}) {
		if slices.Contains(conversing, check.ID) {
			continue
		}
		t.Run(check.ID, func(t *testing.T) {
			for _, kind := range []string{"ok", "bad", "broken"} {
				files, err := filepath.Glob(filepath.Join("testdata", check.ID, kind+"*.txtar"))
				if err != nil || len(files) == 0 {
					t.Errorf("no testdata/%s/%s*.txtar: each check has such cases", check.ID, kind)
				}
				for _, file := range files {
					t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
						runFixture(t, check.ID, kind, file)
					})
				}
			}
		})
	}
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

func runFixture(t *testing.T, id, kind, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	h, want := fixtureHost(t, archive)
	if sick := len(want.Findings) > 0; sick != (kind == "bad") && kind != "broken" {
		t.Fatalf("%s cases have findings: %v", kind, sick)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	findings, err := fresh(t, id).Run(ctx, h)
	compareFindings(t, want, findings)
	compareError(t, want, err)
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

// fixtureHost lays the tree out and returns the machine that it stands for.
func fixtureHost(t *testing.T, archive *txtar.Archive) (*host.Host, fixtureWant) {
	t.Helper()
	root := t.TempDir()
	paths := host.DefaultPaths()
	paths.InitPID = 1
	h := &host.Host{
		NodeName: "fixture", Paths: paths, Files: host.Files{Root: root},
		Clock: func() finding.Stamp {
			return finding.Stamp{Wall: time.Date(2026, 11, 21, 2, 0, 0, 0, time.UTC), Boot: "fixture", Up: time.Hour}
		},
	}
	var want fixtureWant
	hasWant := false
	for _, file := range archive.Files {
		switch file.Name {
		case "want.json":
			hasWant = true
			strictJSON(t, file, &want)
		case "doors/kubelet-pods.json":
			var pods []corev1.Pod
			strictJSON(t, file, &pods)
			h.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return pods, nil }
		case "doors/probe.json":
			h.Prober = fixtureProber(t, file)
		default:
			layOut(t, root, file)
		}
	}
	if !hasWant {
		t.Fatal("no want.json")
	}
	return h, want
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
	name, isLink := strings.CutSuffix(filepath.Join(root, file.Name), "@")
	err := os.MkdirAll(filepath.Dir(name), 0o755)
	if err == nil && isLink {
		err = os.Symlink(strings.TrimSpace(string(file.Data)), name)
	} else if err == nil {
		err = os.WriteFile(name, file.Data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// fixtureProber answers from a file, by path, and fails the test for any other path: it must not be touched.
func fixtureProber(t *testing.T, file txtar.File) host.Prober {
	t.Helper()
	var answers map[string]struct {
		host.ProbeAnswer
		Hang bool `json:"hang"`
	}
	strictJSON(t, file, &answers)
	return host.Prober{Do: func(ctx context.Context, request host.ProbeRequest) (host.ProbeAnswer, error) {
		answer, known := answers[request.Path]
		switch {
		case !known:
			t.Errorf("probe of %s", request.Path)
			return host.ProbeAnswer{}, errors.New("must not be touched")
		case answer.Hang:
			return host.ProbeAnswer{}, context.DeadlineExceeded
		}
		return answer.ProbeAnswer, nil
	}}
}
