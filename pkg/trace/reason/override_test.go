package reason

import (
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
)

func TestOverrides(t *testing.T) {
	o := Overrides{"ImageNotFound": System}
	notFound := creation(bound, report("ErrImagePull", "a:1: not found", "c", 5))
	denied := creation(bound, report("ErrImagePull", "401 Unauthorized", "c", 5))
	deadline := start.Add(promised)
	if got := o.Choose(notFound, deadline, promised); got.Reason != "ImageNotFound" || got.Class != System {
		t.Errorf("%+v", got)
	}
	for name, timeline := range map[string]*record.Timeline{"other reason": denied} {
		if got := o.Choose(timeline, deadline, promised); got.Class != User {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := Overrides(nil).Choose(notFound, deadline, time.Minute); got.Class != User {
		t.Errorf("without a file: %+v", got)
	}
}
