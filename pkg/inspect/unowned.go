package inspect

import (
	"fmt"
)

// isUnowned reports whether all that could name the pod of o was read, and nothing did.
func isUnowned(o *Object) bool { return o.Foreign == "" && o.Doubt == "" && o.Pod.UID == "" }

// unowned judges such an object. What a sandbox that is just starting makes has no owner for a moment either; when that
// lasts, the object is told of once as what it is. It is never released, and no reason to doubt the rest of a pass.
func (e *evaluation) unowned(o *Object, witnesses map[string]Answer, sighting Sighting) (Verdict, string) {
	for _, name := range []string{Runtime, Containerd} {
		if witnesses[name].confirms() {
			return Live, name + " still knows its sandbox, though not whose it is"
		}
	}
	why := "nothing on the node names the pod it was made for"
	if malformed := o.Facts["malformed"]; malformed != "" {
		why = "its content, which would name its pod, is malformed: " + malformed
	}
	age := e.now.Since(sighting.First)
	if sighting.Passes < e.settings.Passes || age < e.settings.Grace {
		return Live, fmt.Sprintf("nothing names its pod yet: seen in %d passes over %s, it may just be starting",
			sighting.Passes, round(age))
	}
	return Unowned, fmt.Sprintf("%s; seen in %d passes over %s: left to a person", why,
		sighting.Passes, round(age))
}

// explainUnowned looks who lives in network namespaces that nothing ties to a pod: they are somebody's then.
func explainUnowned(scan *Scan, objects []Object) {
	var network []*Object
	for i := range objects {
		if o := &objects[i]; networked(o.Kind) && isUnowned(o) {
			network = append(network, o)
		}
	}
	explainNetwork(scan, network)
}
