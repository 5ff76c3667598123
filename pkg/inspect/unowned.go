package inspect

import (
	"cmp"
	"fmt"

	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// isUnowned reports whether all sources that could name the pod of o were read, and none did.
func isUnowned(o *Object) bool { return o.Foreign == "" && o.Doubt == "" && o.Pod.UID == "" }

// unowned evaluates such an object. Objects of a starting sandbox have no owner for a moment either; if that lasts, the
// object is reported once. It is never released, and does not affect the other verdicts of a pass.
func (e *evaluation) unowned(o *Object, witnesses map[string]Answer, sighting Sighting) (Verdict, string) {
	for _, name := range e.specs[o.Kind].GoneFrom {
		if witnesses[name].confirms() {
			return Live, name + " still knows its sandbox, but not its pod"
		}
	}
	why := cmp.Or(e.specs[o.Kind].Unused, "nothing on the node names the pod it was created for")
	if malformed := o.Facts["malformed"]; malformed != "" {
		why += "; its content, which would name its pod, is malformed: " + malformed
	}
	age := e.now.Since(sighting.First)
	if sighting.Passes < e.settings.Passes || age < e.settings.Grace {
		return Live, fmt.Sprintf("nothing names its pod yet: seen in %d passes over %s, it may just be starting",
			sighting.Passes, round(age))
	}
	return Unowned, fmt.Sprintf("%s; seen in %d passes over %s: an administrator has to decide", why,
		sighting.Passes, round(age))
}

// explainUnowned finds the processes in network namespaces without an owner: such a namespace is foreign.
func explainUnowned(scan *hostscan.Scan, objects []Object) {
	var network []*Object
	for i := range objects {
		if o := &objects[i]; o.Kind.networked() && isUnowned(o) {
			network = append(network, o)
		}
	}
	explainNetwork(scan, network)
}
