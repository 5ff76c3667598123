package kinds

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// servers remembers which pod serves a FUSE filesystem: the kernel shows that only while the server runs.
type servers struct {
	mu    sync.Mutex        // guards known
	known map[string]server // by the ID and the device of the mount
}

// server is what is known about the server of a FUSE mount.
type server struct {
	uid    string // of its pod; empty: none is known
	passes int    // passes that searched for it
	fresh  bool   // the mount is younger than the first pass, so that a search has found its server alive
}

// maxPasses is in how many passes the server of a mount is searched: each reads the open files of all pods' processes.
// A server has its end open before the mount exists, but may give it to another process at first.
const maxPasses = 3

func hostMountSpec() Spec {
	return Spec{
		Kind: object.HostMount, List: new(servers).list,
		ReportOnly: "the host or another pod may have begun to use it: once you know that none does, `umount` removes it",
		What: "a mount outside of kubelet's directory that names a pod: it shows a directory of the pod's volumes, or is a FUSE " +
			"filesystem that a process of the pod has served. Pods make such mounts below a `hostPath` with mountPropagation " +
			"`Bidirectional`, or in the host's mount namespace",
		Harm: "a FUSE filesystem without its server fails every access (ENOTCONN), and the next pod with that `hostPath` does not " +
			"start; files of the pod stay on the disk",
	}
}

// list lists the mounts outside of kubelet's directory that name a pod for certain:
//
//   - the mount of a directory of a pod's: the kernel shows the directory's path in its filesystem;
//   - a FUSE filesystem whose only server was seen in the cgroup of a pod.
//
// A pod that made a mount of another kind leaves no trace of itself in it, and such mounts are not listed.
func (s *servers) list(ctx context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	mounts, err := scan.Mounts()
	if err != nil {
		return nil, err
	}
	pods, located := mount.Located(mounts, path.Join(scan.Host.Paths.KubeletRoot, "pods"))
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.known
	s.known = make(map[string]server)
	var objects []object.Object
	for _, m := range mounts {
		if mount.Below(m.Point, scan.Host.Paths.KubeletRoot) {
			continue // listed as mounts, and as staged volumes
		}
		o := object.Object{Kind: object.HostMount}
		if kind, _, _ := strings.Cut(m.FSType, "."); kind == "fuse" && m.Major == 0 {
			key := m.Device() + " " + strconv.Itoa(m.ID)
			known, seen := before[key]
			known.fresh = known.fresh || !seen && before != nil
			o.Foreign, o.Doubt = known.update(ctx, scan, m.Minor)
			o.Pod.UID, s.known[key] = known.uid, known
		} else if o.Pod.UID = podOfRoot(m, pods); !located || o.Pod.UID == "" {
			continue
		}
		o.ID = m.Point + "#" + strconv.Itoa(m.ID)
		o.Identity = mountIdentity(m)
		o.Facts = object.Facts("point", m.Point, "type", m.FSType, "source", m.Source, "root", m.Root, "propagation",
			m.Optional)
		objects = append(objects, o)
	}
	return objects, nil
}

// podOfRoot returns the pod in whose directory the root of a mount lies; empty if there is none.
func podOfRoot(m mount.Mount, pods mount.Place) string {
	if m.Root == "/" {
		return ""
	}
	place, ok := mount.Located([]mount.Mount{m}, m.Point)
	if !ok || !place.Within(pods) {
		return ""
	}
	uid, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(place.Path, pods.Path), "/"), "/")
	if !host.IsPodUID(uid) {
		return ""
	}
	return uid
}

// update searches for the server of a mount if it is not known, or if its pod has ended: a new mount on the same point
// may have the same numbers, and another server. It returns why the mount is foreign, or in doubt.
func (s *server) update(ctx context.Context, scan *hostscan.Scan, connection int) (foreign, doubt string) {
	if s.uid == "" && s.passes == maxPasses {
		return object.CreatorEnded, ""
	}
	table, err := scan.Processes()
	if err == nil && s.uid != "" && table.Count[s.uid] > 0 {
		return "", ""
	}
	uid := ""
	if err == nil {
		uid, err = findServer(ctx, scan, connection, s.fresh)
	}
	if s.uid == "" {
		s.uid, s.passes = uid, s.passes+1
		if s.uid == "" { // an error leaves it unknown, too
			foreign = object.CreatorEnded
		}
		return foreign, ""
	}
	var all []int
	if err == nil && uid == "" {
		all, err = holders.FUSEServers(ctx, scan.Host, connection)
	}
	switch {
	case err != nil:
		return "", "whether another process serves it by now is not known: " + err.Error()
	case uid != "":
		s.uid = uid
	case len(all) > 0:
		return fmt.Sprintf("process %d, which is of no pod, may serve it", all[0]), ""
	}
	return "", ""
}

// noConnection is the number of no FUSE connection.
const noConnection = -2

// findServer returns the pod whose processes serve a FUSE connection; empty if none does, or that is not certain.
// Kernels before 6.16 do not show which of the processes with an open /dev/fuse does. There all of them must be in one
// pod, and the mount must be fresh: the server of an older one may have ended.
func findServer(ctx context.Context, scan *hostscan.Scan, connection int, fresh bool) (uid string, err error) {
	table, err := scan.Processes()
	if err != nil {
		return "", err
	}
	pods := make(map[int]string)
	certain := true // the kernel shows the connection
	for _, p := range table.Pods {
		serves, err := holders.ServesConnection(scan.Host, p.PID, connection)
		if err != nil {
			return "", err
		}
		if !serves {
			continue
		}
		other, err := holders.ServesConnection(scan.Host, p.PID, noConnection)
		if err != nil || p.Conflict != "" || uid != "" && uid != p.UID {
			return "", err
		}
		certain = certain && !other
		uid, pods[p.PID] = p.UID, p.UID
	}
	if certain || uid == "" {
		return uid, nil
	}
	all, err := holders.FUSEServers(ctx, scan.Host, connection)
	if err != nil || !fresh || slices.ContainsFunc(all, func(pid int) bool { return pods[pid] == "" }) {
		return "", err
	}
	return uid, nil
}
