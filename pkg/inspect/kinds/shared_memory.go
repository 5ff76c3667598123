package kinds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// creators remembers which pod's process created a segment of shared memory: the kernel keeps the PID of the creator,
// which is meaningless once the process has ended.
type creators struct {
	mu   sync.Mutex        // guards pods
	pods map[string]string // UID by segment
}

func sharedMemorySpec() Spec {
	return Spec{
		Kind: object.SharedMemory, List: new(creators).list,
		Unused: "its creator has ended more than an hour ago, and nothing has it attached",
		ReportOnly: "its content may be meant for another pod that shares the node's IPC namespace; `ipcrm -m ID` " +
			"removes it",
		What: "a segment of System V shared memory in the node's IPC namespace that a process of a pod (`hostIPC`) " +
			"has created, if the agent has seen that process; otherwise one that nothing has attached is unowned",
		Harm: "memory, which counts for no pod any more",
	}
}

// list lists the segments of System V shared memory in the node's IPC namespace, which a pod with hostIPC shares. One
// is a pod's if a pass has found its creator alive in the cgroup of that pod. For semaphores and message queues the
// kernel keeps no creator.
func (c *creators) list(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	const file = "/proc/sysvipc/shm"
	text, err := scan.Host.Files.Read(file)
	if err != nil {
		return nil, hosterr.Ignore(err, fs.ErrNotExist) // a kernel without it
	}
	segments, err := parseSegments(string(text))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if len(segments) == 0 {
		return nil, nil
	}
	table, err := scan.Processes()
	if err != nil {
		return nil, err
	}
	alive := make(map[int]hostscan.PodProcess)
	for _, p := range table.Pods {
		alive[p.PID] = p
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := make(map[string]string)
	objects := make([]object.Object, 0, len(segments))
	for _, s := range segments {
		uid := c.pods[s.String()]
		if p, ok := alive[s.creator]; ok && p.Conflict == "" && startedBefore(p, s.changed, scan.Host.Clock()) {
			uid = p.UID
		}
		o := s.object(uid, slices.Contains(table.PIDs, s.creator), scan.Host.Clock().Wall)
		if uid != "" {
			known[s.String()] = uid
		}
		objects = append(objects, o)
	}
	c.pods = known
	return objects, nil
}

// startedBefore reports whether a process is older than a segment with its PID: no other has had that PID since.
func startedBefore(p hostscan.PodProcess, changed int64, now finding.Timestamp) bool {
	const ticks = 100 // USER_HZ
	began := now.Wall.Add(time.Duration(p.StartTime)*time.Second/ticks - now.SinceBoot)
	return began.Unix() <= changed+1
}

// segment is a line of /proc/sysvipc/shm (ipc/shm.c: sysvipc_shm_proc_show).
type segment struct {
	id, key            string
	creator, last      int
	attached           uint64
	size, memory, user string
	changed            int64 // seconds since the epoch
}

// String identifies a segment: the ID of a removed one is reused after some ten thousand others.
func (s segment) String() string { return s.id + "/" + s.key + "/" + strconv.Itoa(s.creator) }

// unownedAfter is for how many seconds a segment must have existed unchanged before it is unowned.
const unownedAfter = 3600

// object returns the object of a segment created by a pod; uid is empty if unknown. A detached segment whose creator
// has ended is unowned: another process may still attach it, so it is only reported.
func (s segment) object(uid string, runs bool, now time.Time) object.Object {
	o := object.Object{
		Kind: object.SharedMemory, ID: s.id, Pod: object.Pod{UID: uid},
		Identity: named("id", s.id, "key", s.key, "creator", strconv.Itoa(s.creator), "size", s.size),
		Facts: object.Facts("size", s.size, "bytes", s.memory, "user", s.user,
			"attached", strconv.FormatUint(s.attached, 10), "lastProcess", strconv.Itoa(s.last)),
	}
	switch {
	case uid != "" && s.attached > 0:
		o.InUse = fmt.Sprintf("%d processes have it attached, the last that attached or detached it was PID %d",
			s.attached, s.last)
	case uid == "" && runs:
		o.Foreign = fmt.Sprintf("its creator, PID %d, belongs to no pod", s.creator)
	case uid == "" && (s.attached > 0 || now.Unix()-s.changed < unownedAfter):
		o.Foreign = object.CreatorEnded
	}
	return o
}

// parseSegments parses /proc/sysvipc/shm:
//
//	key      shmid perms       size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime   rss  swap
//	  0      32768   600       4096  4711  4711      0  1000  1000  1000  1000          0          0 1763841912     0     0
func parseSegments(text string) ([]segment, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	at := make(map[string]int)
	for i, column := range strings.Fields(lines[0]) {
		at[column] = i
	}
	for _, column := range []string{"key", "shmid", "size", "cpid", "lpid", "nattch", "cuid", "ctime"} {
		if _, ok := at[column]; !ok {
			return nil, fmt.Errorf("no column %s in %q", column, lines[0])
		}
	}
	segments := make([]segment, 0, len(lines)-1)
	for _, line := range lines[1:] {
		fields := strings.Fields(line)
		if len(fields) != len(at) {
			return nil, fmt.Errorf("%d fields, want %d: %q", len(fields), len(at), line)
		}
		s := segment{id: fields[at["shmid"]], key: fields[at["key"]], size: fields[at["size"]], user: fields[at["cuid"]]}
		var errs [6]error
		var resident, swapped uint64
		s.creator, errs[0] = strconv.Atoi(fields[at["cpid"]])
		s.last, errs[1] = strconv.Atoi(fields[at["lpid"]])
		s.attached, errs[2] = strconv.ParseUint(fields[at["nattch"]], 10, 64)
		s.changed, errs[3] = strconv.ParseInt(fields[at["ctime"]], 10, 64)
		if _, ok := at["rss"]; ok { // since Linux 2.6.36
			resident, errs[4] = strconv.ParseUint(fields[at["rss"]], 10, 64)
			swapped, errs[5] = strconv.ParseUint(fields[at["swap"]], 10, 64)
			s.memory = strconv.FormatUint(resident+swapped, 10)
		}
		if err := errors.Join(errs[:]...); err != nil {
			return nil, fmt.Errorf("%w: %q", err, line)
		}
		segments = append(segments, s)
	}
	return segments, nil
}
