package verdict

import (
	"cmp"
	"fmt"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// unowned evaluates such an object. Objects of a starting sandbox have no owner for a moment either; if that lasts, the
// object is reported once. It is never released, and does not affect the other verdicts of a pass.
func (e *evaluation) unowned(o *object.Object, witnesses map[string]object.Answer,
	sighting object.Sighting) (object.Verdict, string) {
	for _, name := range e.specs[o.Kind].GoneFrom {
		if witnesses[name].Confirms() {
			return object.Live, name + " still knows its sandbox, but not its pod"
		}
	}
	why := cmp.Or(e.specs[o.Kind].Unused, "nothing on the node names the pod it was created for")
	if malformed := o.Facts["malformed"]; malformed != "" {
		why += "; its content, which would name its pod, is malformed: " + malformed
	}
	age := e.now.Since(sighting.First)
	if sighting.Passes < e.settings.Passes || age < e.settings.Grace {
		return object.Live, fmt.Sprintf("nothing names its pod yet: seen in %d passes over %s, it may just be starting",
			sighting.Passes, object.Round(age))
	}
	return object.Unowned, fmt.Sprintf("%s; seen in %d passes over %s: an administrator has to decide", why,
		sighting.Passes, object.Round(age))
}
