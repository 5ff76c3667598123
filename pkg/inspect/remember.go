package inspect

import (
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// recall restores the owner that an earlier pass saw if no source on the node names one any more. It applies to the
// very same object only: a namespace with the same inode at the same path, a link with the same index and peer. If a
// source names another owner now, the object is claimed by both. It returns the keys of the objects whose owner only
// the history knows.
func recall(objects []object.Object, history object.History, now finding.Timestamp) map[string]bool {
	recalled := make(map[string]bool)
	for i := range objects {
		o := &objects[i]
		if !object.LosesOwner(o.Kind) {
			continue
		}
		s := remembered(o, history, now)
		before := kinds.Owner{Sandbox: s.SandboxID, Pod: s.Pod}
		switch {
		case s.Pod.UID == "":
		case o.Pod.UID == "":
			o.Foreign = ""
			kinds.AttachOwner(o, []kinds.Owner{before})
			recalled[object.Key(o)] = true
		case o.Kind == object.StrayCgroup && o.Pod.UID == before.Pod.UID && o.Foreign != "":
			o.Foreign = ""
			recalled[object.Key(o)] = true
		case o.SandboxID != before.Sandbox || o.Pod.UID != before.Pod.UID:
			kinds.AttachOwner(o, []kinds.Owner{{Sandbox: o.SandboxID, Pod: o.Pod}, before})
		}
	}
	return recalled
}

// remembered returns the sighting with the owner of o. It is empty if o was replaced, or if o is foreign for another
// reason than a missing owner.
func remembered(o *object.Object, history object.History, now finding.Timestamp) object.Sighting {
	s, ok := history[object.Key(o)]
	if !ok || !object.SameBoot(s.First, now) || o.Foreign != "" && !kinds.LostNetns(o) &&
		o.Foreign != object.CreatorEnded &&
		o.Kind != object.StrayCgroup {
		return object.Sighting{}
	}
	switch {
	case o.Kind == object.Netns && o.Facts["state"] == kinds.EmptyFile:
		return s // its name is a UUID, which the runtime uses once
	case kinds.LostNetns(o):
		whole := o.Identity
		whole.Link.Namespace = s.Identity.Link.Namespace
		if whole.Equal(s.Identity) {
			o.Identity = whole
			return s
		}
		return object.Sighting{}
	case !o.Identity.Equal(s.Identity):
		return object.Sighting{}
	}
	return s
}

// keepOwners stores the owners of objects in the next history. An owner that only the history knows stays in it
// whatever the verdict: a process that enters a namespace for a moment makes it foreign, but its owner must not be
// forgotten.
func keepOwners(objects []object.Object, recalled map[string]bool, next object.History, now finding.Timestamp) {
	for i := range objects {
		o := &objects[i]
		if !object.LosesOwner(o.Kind) || o.Pod.UID == "" || o.Kind == object.StrayCgroup && o.Foreign != "" {
			continue
		}
		s, ok := next[object.Key(o)]
		if !ok && !recalled[object.Key(o)] && o.Kind != object.StrayCgroup { // the proof that it is ours goes before it
			continue
		}
		if !ok {
			s = object.Sighting{Identity: o.Identity, First: now, Last: now}
		}
		s.Pod, s.SandboxID = o.Pod, o.SandboxID
		next[object.Key(o)] = s
	}
}

// addNames adds namespace and name to objects with only the UID of their pod: a cgroup, a process, a mount. They come
// from another object of the pod, or from an earlier pass: the sandbox may be gone by now, and settings for a namespace
// must apply to all leftovers of the pod.
func addNames(objects []object.Object, history object.History) {
	names := make(map[string]object.Pod)
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
func keepNames(objects []object.Object, next object.History) {
	for i := range objects {
		o := &objects[i]
		if s, ok := next[object.Key(o)]; ok && o.Pod.UID != "" && o.Pod.Namespace != "" {
			s.Pod = o.Pod
			next[object.Key(o)] = s
		}
	}
}
