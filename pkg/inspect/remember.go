package inspect

import (
	"maps"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// losesOwner reports whether objects of a kind can outlive the source of their pod's name. CNI DEL deletes the cache
// file, which may be the only source for a network namespace, the link into it, and a lease. Shared memory has the PID
// of its creator; a FUSE filesystem shows its server only while that runs.
func losesOwner(kind Kind) bool {
	return kind == Netns || kind == Link || kind == Lease || kind == SharedMemory || kind == HostMount || kind.namedByID()
}

// CreatorEnded is why shared memory or a FUSE filesystem is foreign if only an earlier pass could name its pod.
const CreatorEnded = "nothing shows whether the process that created it belonged to a pod"

// recall restores the owner that an earlier pass saw if no source on the node names one any more. It applies to the
// very same object only: a namespace with the same inode at the same path, a link with the same index and peer. If a
// source names another owner now, the object is claimed by both. It returns the keys of the objects whose owner only
// the history knows.
func recall(objects []Object, history History, now finding.Timestamp) map[string]bool {
	recalled := make(map[string]bool)
	for i := range objects {
		o := &objects[i]
		if !losesOwner(o.Kind) {
			continue
		}
		s := remembered(o, history, now)
		before := owner{s.SandboxID, s.Pod}
		switch {
		case s.Pod.UID == "":
		case o.Pod.UID == "":
			o.Foreign = ""
			attachOwner(o, []owner{before})
			recalled[key(o)] = true
		case o.Kind == StrayCgroup && o.Pod.UID == before.pod.UID && o.Foreign != "":
			o.Foreign = ""
			recalled[key(o)] = true
		case o.SandboxID != before.sandbox || o.Pod.UID != before.pod.UID:
			attachOwner(o, []owner{{o.SandboxID, o.Pod}, before})
		}
	}
	return recalled
}

// remembered returns the sighting with the owner of o. It is empty if o was replaced, or if o is foreign for another
// reason than a missing owner.
func remembered(o *Object, history History, now finding.Timestamp) Sighting {
	s, ok := history[key(o)]
	if !ok || !sameBoot(s.First, now) || o.Foreign != "" && !lostNetns(o) && o.Foreign != CreatorEnded &&
		o.Kind != StrayCgroup {
		return Sighting{}
	}
	switch {
	case o.Kind == Netns && o.Facts["state"] == emptyFile:
		return s // its name is a UUID, which the runtime uses once
	case lostNetns(o):
		whole := maps.Clone(o.Identity)
		whole[namespaceKey] = s.Identity[namespaceKey]
		if maps.Equal(whole, s.Identity) {
			o.Identity = whole
			return s
		}
		return Sighting{}
	case !maps.Equal(o.Identity, s.Identity):
		return Sighting{}
	}
	return s
}

// keepOwners stores the owners of objects in the next history. An owner that only the history knows stays in it
// whatever the verdict: a process that enters a namespace for a moment makes it foreign, but its owner must not be
// forgotten.
func keepOwners(objects []Object, recalled map[string]bool, next History, now finding.Timestamp) {
	for i := range objects {
		o := &objects[i]
		if !losesOwner(o.Kind) || o.Pod.UID == "" || o.Kind == StrayCgroup && o.Foreign != "" {
			continue
		}
		s, ok := next[key(o)]
		if !ok && !recalled[key(o)] && o.Kind != StrayCgroup { // the proof that it is ours goes before it
			continue
		}
		if !ok {
			s = Sighting{Identity: maps.Clone(o.Identity), First: now, Last: now}
		}
		s.Pod, s.SandboxID = o.Pod, o.SandboxID
		next[key(o)] = s
	}
}

// addNames adds namespace and name to objects with only the UID of their pod: a cgroup, a process, a mount. They come
// from another object of the pod, or from an earlier pass: the sandbox may be gone by now, and settings for a namespace
// must apply to all leftovers of the pod.
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
