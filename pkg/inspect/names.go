package inspect

// addNames adds namespace and name to objects that have only the UID of their pod: a cgroup, a process, a mount. They
// come from another object of the pod, or from an earlier pass: the sandbox may be gone by now, and settings for a
// namespace must apply to everything that the pod leaves behind.
func addNames(objects []Object, history History) {
	names := make(map[string]Pod)
	for _, s := range history {
		if s.Pod.UID != "" && s.Pod.Namespace != "" {
			names[s.Pod.UID] = s.Pod
		}
	}
	for i := range objects {
		if pod := objects[i].Pod; pod.UID != "" && pod.Namespace != "" {
			names[pod.UID] = pod
		}
	}
	for i := range objects {
		if o := &objects[i]; o.Pod.UID != "" && o.Pod.Namespace == "" && names[o.Pod.UID].Namespace != "" {
			o.Pod = names[o.Pod.UID]
		}
	}
}

// keepNames stores them in the history for the next pass.
func keepNames(objects []Object, next History) {
	for i := range objects {
		o := &objects[i]
		if s, ok := next[key(o)]; ok && o.Pod.UID != "" && o.Pod.Namespace != "" {
			s.Pod = o.Pod
			next[key(o)] = s
		}
	}
}
