package kinds_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Logs are proven like other objects, after they have been seen for a day. They close no gate, and once they are proven
// passes rest, unless a release may follow.
func TestPodLogs(t *testing.T) {
	n := newNode(t)
	logs := n.Host.Paths.PodLogs
	n.Mkdir(logs, "default_web_"+living)
	n.Mkdir(logs, "lost+found")
	for name, size := range map[string]int64{"app/0.log": 1000, "app/0.log.1.gz": 24, "init/0.log": 6} {
		name = filepath.Join(logs, "default_job_"+dead, name)
		n.Mkdir(filepath.Dir(name))
		write(t, name, strings.Repeat("x", int(size)))
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(logs, "default_job_"+dead, "app", "link")); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"1", "2", "3", "4", "5"} { // more than the gate against mass orphaning allows
		n.Mkdir(logs, "default_job_"+dead[:len(dead)-1]+uid)
	}
	i := n.inspector()
	var report object.Report
	history := object.History{}
	for range 3 {
		i.Rests(t.Context()) // it may for a while: the next pass is made in any case
		report, history = i.Pass(t.Context(), history)
		n.After(13 * time.Hour)
	}
	inspecttest.NoErrors(t, report)
	want := map[string]object.Verdict{"default_web_" + living: object.Live, "lost+found": object.Foreign,
		"default_job_" + dead: object.Leftover}
	got := map[string]object.Verdict{}
	for _, o := range report.Objects {
		if name := filepath.Base(o.ID); o.Kind == object.PodLogs && want[name] != "" {
			got[name] = o.Verdict
		}
		if want := map[string]string{"default_job_" + dead: "1030"}[filepath.Base(o.ID)]; o.Kind == object.PodLogs &&
			o.Pod.UID == dead && o.Facts["bytes"] != want {
			t.Errorf("%s has %q bytes, want %q", o.ID, o.Facts["bytes"], want)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, gate := range report.Gates {
		if !gate.Open {
			t.Errorf("gate %s is closed: %s", gate.Name, gate.Why)
		}
	}
	if !i.Rests(t.Context()) {
		t.Error("the inspector does not rest beside what is proven, and not opted in")
	}
}

// A link is a leftover if its target directory of logs is gone and no witness knows its pod and container.
func TestLogLinks(t *testing.T) {
	n := newNode(t)
	logs := n.Host.Paths.PodLogs
	links := filepath.Join(filepath.Dir(logs), "containers")
	n.Mkdir(links)
	id := strings.Repeat("a", 64)
	for name, target := range map[string]string{
		"job_default_app-" + id + ".log": filepath.Join(logs, "default_job_"+dead, "app",
			"0.log"),
		"long_default_app-" + id[:9] + ".log": filepath.Join(logs, "default_long_"+dead, "app",
			"0.log"),
		"web_default_app-" + id + ".log": filepath.Join(logs, "default_web_"+living, "app",
			"0.log"),
		"kept_default_app-" + id + ".log": filepath.Join(logs, "default_kept_"+dead, "app",
			"0.log"),
		"runs_default_app-" + strings.Repeat("c", 64) + ".log": filepath.Join(logs, "default_runs_"+dead, "app",
			"0.log"),
		"mine_default_app-" + id + ".log": "/nowhere/" + dead,
		"mine": filepath.Join(logs, "default_mine_"+dead, "app",
			"0.log"),
	} {
		if err := os.Symlink(target, filepath.Join(links, name)); err != nil {
			t.Fatal(err)
		}
	}
	n.Mkdir(logs, "default_kept_"+dead)
	n.Containers = []*cri.Container{{Id: strings.Repeat("c", 64), State: cri.ContainerState_CONTAINER_EXITED}}
	report := n.ripen(t, object.History{}, n.inspector())
	want := map[string]object.Verdict{"job": object.Leftover, "long": object.Leftover, "web": object.Live,
		"runs": object.Candidate}
	if diff := cmp.Diff(want, verdictsByName(report, object.LogLink, func(o object.Assessment) string {
		name, _, _ := strings.Cut(filepath.Base(o.ID), "_")
		return name
	})); diff != "" {
		t.Errorf("%s\n%+v", diff, report.Errors)
	}
}
