package inspect

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What is only reported is proven as all else is. It is not given to a release, closes no gate, and a pass rests beside
// it once it is proven.
func TestPodLogs(t *testing.T) {
	n := newNode(t)
	logs := n.host.Paths.PodLogs
	n.mkdir(logs, "default_web_"+living)
	n.mkdir(logs, "lost+found")
	n.mkdir(logs, "default_job_"+dead)
	for _, uid := range []string{"1", "2", "3", "4", "5"} { // more than the gate on mass orphaning allows
		n.mkdir(logs, "default_job_"+dead[:len(dead)-1]+uid)
	}
	i := n.inspector()
	var report Report
	history := History{}
	for range 3 {
		if i.Rests(t.Context()) {
			t.Fatal("the inspector rests before the verdict")
		}
		report, history = i.Pass(t.Context(), history)
		n.after(5 * time.Minute)
	}
	noErrors(t, report)
	want := map[string]Verdict{"default_web_" + living: Live, "lost+found": Foreign, "default_job_" + dead: Leftover}
	got := map[string]Verdict{}
	for _, o := range report.Objects {
		if name := filepath.Base(o.ID); o.Kind == PodLogs && want[name] != "" {
			got[name] = o.Verdict
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, o := range report.Releasable().Objects {
		t.Errorf("%s %s is given to the release", o.Kind, o.ID)
	}
	for _, gate := range report.Gates {
		if !gate.Open {
			t.Errorf("gate %s is closed: %s", gate.Name, gate.Why)
		}
	}
	if !i.Rests(t.Context()) {
		t.Error("the inspector does not rest beside what is proven and only reported")
	}
}

func TestPodOfLogs(t *testing.T) {
	want := Pod{Namespace: "kube-system", Name: "web-0", UID: living}
	for name, ok := range map[string]bool{
		"kube-system_web-0_" + living: true, "kube-system_web-0_" + living + "_1": false, "_web-0_" + living: false,
		"kube-system_web-0_nouid": false, "lost+found": false, "": false,
	} {
		if got, is := podOfLogs(name); is != ok || ok && got != want {
			t.Errorf("%q: %+v, %t", name, got, is)
		}
	}
}
