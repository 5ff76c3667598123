package api_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

// From acts to the report: the version of kubelet whose sandboxes are slower is named, and equal runtimes are not.
func TestVersions(t *testing.T) {
	f := newFixture(t, 30)
	fast, slow := record.Build{Kubelet: "v1.36.3", Runtime: "containerd://2"}, record.Build{Kubelet: "v1.36.4", Runtime: "containerd://2"}
	at := sunday.Truncate(time.Hour).Add(-90 * time.Minute)
	batch := follow.Batch{}
	for i := range 500 {
		a := act(record.Creation, fmt.Sprintf("v%d", i), verdict.Delivered, at, "")
		build, sandbox := fast, time.Duration(1800+i)*time.Millisecond
		if i%2 == 1 {
			build, sandbox = slow, sandbox*3/2
		}
		a.Timeline.Build = build.ID()
		begin := at.Add(-time.Minute)
		a.Timeline.Marks = map[record.Point]record.Mark{}
		for p, after := range map[record.Point]time.Duration{record.Created: 0, record.Scheduled: time.Second, record.KubeletSaw: 2 * time.Second,
			record.SandboxReady: 2*time.Second + sandbox, record.Running: 10 * time.Second} {
			a.Timeline.Set(p, record.Mark{Source: record.Own, Arrival: begin.Add(after)})
		}
		batch.Judged = append(batch.Judged, a)
	}
	if err := f.kept.Save(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if answer, err := f.api.Versions(t.Context(), nil); err != nil || len(answer.Versions) != 0 {
		t.Fatalf("before the hour is added up: %+v, %v", answer, err)
	}
	if err := f.kept.CountHour(t.Context(), sunday, map[int64]record.Build{fast.ID(): fast, slow.ID(): slow}); err != nil {
		t.Fatal(err)
	}
	answer, err := f.api.Versions(t.Context(), nil)
	if err != nil || len(answer.Slower) != 1 {
		t.Fatalf("%+v, %v", answer, err)
	}
	s := answer.Slower[0]
	if s.Component != "kubelet" || s.Version != "v1.36.4" || s.Than != "v1.36.3" || s.Stage != stage.Sandbox || s.Samples != [2]int{250, 250} {
		t.Errorf("%+v", s)
	}
	if r, err := f.api.Report(t.Context(), "", ""); err != nil || len(r.Slower) != 1 {
		t.Errorf("report: %+v, %v", r.Slower, err)
	} else if _, err := r.Mail(); err != nil {
		t.Error(err)
	}
}
