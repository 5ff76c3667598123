package discover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/owned"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// Anybody can start a process called kubelet. What such a process says (its kubeconfig, whose programs are run as
// root; its folders, whose programs are run as root; its server, which is shown a token) is believed of root's own
// alone:
//
//	/proc/PID/status    Uid: all four are 0, as the machine counts
//	/proc/PID/ns/user   that of the host's init; where it cannot be read, uid_map is that of a machine: 0 0 4294967295
//	/proc/PID/cgroup    not that of a pod, of another container or of a user's session
//	/proc/PID/exe       a program of that name, root's alone with each folder on the way: see package owned
//	/proc/PID/ns/mnt    that of the host's init
//
// A local user, a container and a setuid program under a borrowed name fail the first four: they are impostors, as if
// they were not there. Only root can make a process that fails the others: whether that is the node's kubelet cannot
// be determined, which is an error and not "no kubelet runs". paths.kubeletElsewhere settles it for a mount namespace
// of kubelet's own, for a kubelet that root started by hand, and for one in a container with the host's PIDs; one in a
// pod is never believed.

// ErrImpostor means that a process has the name of a daemon of the node but does not belong to root.
var ErrImpostor = errors.New("it is not believed")

// candidate is a process with the name of a daemon.
type candidate struct {
	host.Process
	uid     uint32
	program string // empty if it was not checked
	// why it is not trusted: ErrImpostor, or the undetermined fact; nil: it is trusted. Only then are the arguments
	// read.
	why error
}

// candidates returns the living processes for which wanted is true, like processesNamed, each with whether it is
// trusted. For untrusted ones, wanted has seen the kernel's name alone: their arguments are not read, since reading
// their memory may hang. A process in its own PID namespace belongs to another machine.
func candidates(h *host.Host, wanted func(comm string, args []string) bool) ([]candidate, error) {
	pids, err := h.PIDs()
	if err != nil {
		return nil, err
	}
	var stats []proc.Stat
	for _, pid := range pids {
		if stat, err := h.ProcStat(pid); err == nil { // most often gone meanwhile
			stats = append(stats, stat)
		}
	}
	return judgeAll(h, stats, wanted), nil
}

func judgeAll(h *host.Host, stats []proc.Stat, wanted func(comm string, args []string) bool) []candidate {
	var found []candidate
	for _, stat := range stats {
		if !runs(stat) || !wanted(stat.Comm, nil) {
			continue
		}
		c := candidate{Process: processOf(stat)}
		if c.why = judge(h, &c); c.why == nil {
			var err error
			if c.Args, err = h.ProcArgs(stat.PID); err != nil || len(c.Args) == 0 || !wanted(stat.Comm, c.Args) {
				continue
			}
		}
		// The PID may have been reused while its files were read.
		if lives(h, c.Process) && !proc.Gone(c.why) {
			found = append(found, c)
		}
	}
	return found
}

// believed returns the trusted candidates, and an error for those that could not be determined.
func believed(all []candidate) (sure []host.Process, unsure error) {
	for _, c := range all {
		switch {
		case c.why == nil:
			sure = append(sure, c.Process)
		case !errors.Is(c.why, ErrImpostor):
			unsure = errors.Join(unsure, fmt.Errorf("process %d (%s): %w", c.PID, c.Comm, c.why))
		}
	}
	return sure, unsure
}

// judge returns why a process is not trusted.
func judge(h *host.Host, c *candidate) error {
	var err error
	if c.uid, err = rootUser(h, c.PID); err != nil {
		return err
	}
	if err := machineUsers(h, c.PID); err != nil {
		return err
	}
	if Nested(h, c.PID) {
		return fmt.Errorf("it is in a PID namespace of its own: %w", ErrImpostor)
	}
	place, err := foreignCgroup(h, c.PID)
	if err != nil {
		return err
	}
	if place == inPod || place != "" && !h.Paths.KubeletElsewhere {
		return fmt.Errorf("it is in the cgroup of %s: %w", place, ErrImpostor)
	}
	if err := programName(h, c); err != nil {
		return unlessUnprivileged(err)
	}
	file := owned.File{}
	err = hostMounts(h, c.PID)
	switch {
	case err == nil:
		file, err = programFile(h, c.program)
	case h.Paths.KubeletElsewhere:
		err = nil // its files are not the host's: the program is checked by itself
	}
	if err != nil {
		return unlessUnprivileged(err)
	}
	return sameProgram(h, c.PID, file)
}

// unlessUnprivileged ignores the error if a user's agent may not examine root's processes: root's user ID and a cgroup
// of the machine must be enough for it.
func unlessUnprivileged(err error) error {
	if os.Geteuid() != 0 && errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// rootUser returns the user of a process if one of its four user IDs is not root.
func rootUser(h *host.Host, pid int) (uint32, error) {
	fields, err := statusFields(h, pid, "Uid")
	if err != nil {
		return 0, err
	}
	if len(fields) != 4 {
		return 0, fmt.Errorf("%s: %d users", proc.File(pid, "status"), len(fields))
	}
	for _, field := range fields {
		uid, err := strconv.ParseUint(field, 10, 32)
		if err != nil {
			return 0, fmt.Errorf("user %q: %w", hosterr.Clip(field), err)
		}
		if !owned.UID(uint32(uid)) {
			return uint32(uid), fmt.Errorf("it runs as user %d: %w", uid, ErrImpostor)
		}
	}
	return 0, nil
}

// rootsOwn reports whether a process is known to be root's.
func rootsOwn(h *host.Host, pid int) bool {
	_, err := rootUser(h, pid)
	return err == nil
}

// machineUsers returns an error if root of a process is root of a user namespace only.
func machineUsers(h *host.Host, pid int) error {
	if same, err := sameNamespace(h, pid, "user"); err == nil {
		if !same {
			return fmt.Errorf("it is in a user namespace of its own: %w", ErrImpostor)
		}
		return nil
	}
	data, err := h.Files.Read(proc.File(pid, "uid_map"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // a kernel without user namespaces; a process that ended is noticed afterwards
	case err != nil:
		return unlessUnprivileged(err)
	case !slices.Equal(strings.Fields(string(data)), []string{"0", "0", "4294967295"}):
		return fmt.Errorf("it is in a user namespace of its own: %w", ErrImpostor)
	}
	return nil
}

// hostMounts returns an error if a process sees other files than the machine.
func hostMounts(h *host.Host, pid int) error {
	same, err := sameNamespace(h, pid, "mnt")
	if err == nil && !same {
		return errors.New("it is in a mount namespace of its own: paths.kubeletElsewhere says that it is this node's")
	}
	return err
}

// sameNamespace compares the namespace of a process with the host's: init's, or, if that is unreadable, the agent's
// own, which is a process of the host.
func sameNamespace(h *host.Host, pid int, kind string) (bool, error) {
	its, err := h.Files.Link(proc.File(pid, "ns/"+kind))
	if err != nil {
		return false, err
	}
	host, err := h.Files.Link(proc.File(max(h.Paths.InitPID, 1), "ns/"+kind))
	if err != nil {
		if host, err = h.Files.Link("/proc/self/ns/" + kind); err != nil {
			return false, fmt.Errorf("which %s namespace is the host's: %s", kind, err) //nolint:errorlint // it is not the process that is gone
		}
	}
	return its == host, nil
}

// isDaemonProgram reports whether a program file is a kubelet or a runtime by its name, or contains one: a setuid
// program started through a link called kubelet is neither.
func isDaemonProgram(name string) bool {
	if name == "crio" || strings.HasPrefix(name, "ld-linux") || strings.HasPrefix(name, "ld-musl") {
		return true
	}
	parts := slices.Concat(distro.KubeletPrograms(), distro.Launchers(), []string{"containerd"})
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(name, part) })
}

// programName finds the program file of a process.
func programName(h *host.Host, c *candidate) error {
	path, err := h.Files.Link(proc.File(c.PID, "exe"))
	if err != nil {
		return err
	}
	c.program = path
	if !isDaemonProgram(filepath.Base(strings.TrimSuffix(path, removed))) {
		return fmt.Errorf("its program is %s: %w", path, ErrImpostor)
	}
	return nil
}

// removed is the suffix of the link to a file without a name.
const removed = " (deleted)"

// programFile checks a program file and returns it as it is on the disk; empty for a file removed since, as by an
// upgrade: its folder must be root's then.
func programFile(h *host.Host, path string) (file owned.File, err error) {
	if path, gone := strings.CutSuffix(path, removed); gone {
		_, err = h.Files.CheckOwned(filepath.Dir(path))
	} else {
		file, err = h.Files.CheckOwned(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("its program %s is not among the files of the host", path) // which is not: the process is gone
	}
	return file, err
}

// sameProgram compares the running program with the checked file. A removed file is judged by itself.
func sameProgram(h *host.Host, pid int, checked owned.File) error {
	if h.Files.Root != "" {
		return nil // links in a fixture are no magic ones
	}
	var stat unix.Stat_t
	if err := unix.Stat(proc.File(pid, "exe"), &stat); err != nil {
		return unlessUnprivileged(&fs.PathError{Op: "stat", Path: proc.File(pid, "exe"), Err: err})
	}
	switch {
	case !owned.UID(stat.Uid) || stat.Mode&0o022 != 0:
		return fmt.Errorf("its program belongs to user %d, mode %04o: %w", stat.Uid, stat.Mode&0o7777, owned.ErrOthers)
	case checked.Path != "" && (checked.Inode != stat.Ino || checked.Device != stat.Dev):
		return fmt.Errorf("its program is not the one that lies at %s now", checked.Path)
	}
	return nil
}

// The owners of a process's cgroup other than the machine.
const (
	inPod       = "a pod"
	inContainer = "a container"
	inSession   = "a user's session"
)

var (
	// podCgroup matches one part of the path of a pod's cgroup.
	podCgroup = regexp.MustCompile(`^kubepods|^pod[0-9a-f]{8}-|^pod[0-9a-f]{32}$|^(crio|cri-containerd)-.*\.scope$`)
	// containerCgroup matches one part of the path of a container runtime's cgroup.
	containerCgroup = regexp.MustCompile(
		`^kubepods|^pod[0-9a-f]{8}-|^pod[0-9a-f]{32}$|[0-9a-f]{64}|^docker$|^machine\.slice$|^machine-.*\.scope$|` +
			`^libpod|^lxc(\.|$)|^(docker|crio|cri-containerd|nerdctl|podman)-.*\.scope$`)
	// runtimeCgroup matches its first part: the namespaces of containerd.
	runtimeCgroup = regexp.MustCompile(`^(k8s\.io|moby|default|buildkit|machine)$`)
	// userCgroup matches one part of the path of a session's.
	userCgroup = regexp.MustCompile(`^user\.slice$|^user-\d+\.slice$|^user@\d+\.service$|^session-.*\.scope$`)
)

// foreignCgroup returns who owns a process's cgroup, in any hierarchy; empty: the machine. A pod's takes precedence.
func foreignCgroup(h *host.Host, pid int) (string, error) {
	cgroups, err := h.ProcCgroups(pid)
	if err != nil {
		return "", err
	}
	init, err := h.ProcCgroups(max(h.Paths.InitPID, 1))
	if err != nil {
		init = nil // paths then begin at the root
	}
	place := ""
	for controllers, path := range cgroups {
		switch found := placeOfCgroup(path, init[controllers]); {
		case found == inPod:
			return found, nil
		case found == inContainer, place == "":
			place = found
		}
	}
	return place, nil
}

// Foreign reports whether a process is not the machine's own: it lives in a container, or in a session of a user.
func Foreign(h *host.Host, pid int) (bool, error) {
	place, err := foreignCgroup(h, pid)
	return place != "" || err == nil && Nested(h, pid), err
}

// placeOfCgroup evaluates one path. If the machine is a container itself, paths begin with its own: init's.
func placeOfCgroup(path, init string) string {
	base := strings.TrimSuffix(init, "/init.scope")
	if rest, ok := strings.CutPrefix(path, base); ok && base != "" && base != "/" && (rest == "" || rest[0] == '/') {
		path = rest
	}
	parts := strings.Split(strings.Trim(strings.TrimSuffix(path, removed), "/"), "/")
	switch {
	case slices.ContainsFunc(parts, podCgroup.MatchString):
		return inPod
	case runtimeCgroup.MatchString(parts[0]) && len(parts) > 1, slices.ContainsFunc(parts, containerCgroup.MatchString):
		return inContainer
	case parts[0] == "user", slices.ContainsFunc(parts, userCgroup.MatchString):
		return inSession
	}
	return ""
}

// Impostor is an untrusted process with the name of a daemon of the node.
type Impostor struct {
	host.Process
	User    uint32
	Program string // empty if unreadable
	Why     string
	// Perhaps is set if it may be the node's own kubelet nevertheless: of the machine's root, and in no pod.
	Perhaps bool
}

// Impostors lists them. A process in a container's PID namespace is not one, but belongs to another machine (kind,
// Docker in Docker).
func Impostors(ctx context.Context, h *host.Host) ([]Impostor, error) {
	table, err := h.ProcessTable(ctx, 30*time.Second)
	if err != nil {
		return nil, err
	}
	var impostors []Impostor
	for _, c := range judgeAll(h, table, func(comm string, _ []string) bool {
		return isKubelet(comm, nil) && isDaemonProgram(comm) && !strings.HasPrefix(comm, "ld-") ||
			slices.Contains(distro.Launchers(), comm) || comm == "containerd" || comm == "crio"
	}) {
		if c.why == nil || harmless(h, c) {
			continue
		}
		i := Impostor{Process: c.Process, User: c.uid, Program: c.program, Why: strings.TrimSuffix(c.why.Error(), ": "+
			ErrImpostor.Error())}
		i.Perhaps = isKubelet(c.Comm, nil) && c.uid == 0 && perhapsOurs(h, c)
		if i.Program == "" {
			i.Program, _ = h.Files.Link(proc.File(c.PID, "exe")) // for people
		}
		impostors = append(impostors, i)
	}
	return impostors, nil
}

// perhapsOurs reports whether paths.kubeletElsewhere could identify a process as the node's.
func perhapsOurs(h *host.Host, c candidate) bool {
	if _, err := rootUser(h, c.PID); err != nil || machineUsers(h, c.PID) != nil || Nested(h, c.PID) {
		return false
	}
	place, err := foreignCgroup(h, c.PID)
	return err == nil && place != inPod && programName(h, &c) == nil
}

// harmless recognizes legitimate processes of that name: nodes in containers, and the containerd of a user in the
// user's own user namespace (rootless Docker, nerdctl).
func harmless(h *host.Host, c candidate) bool {
	if place, err := foreignCgroup(h, c.PID); err == nil && (place == inContainer || place == inPod) && Nested(h, c.PID) {
		return true
	}
	return c.Comm == "containerd" && errors.Is(machineUsers(h, c.PID), ErrImpostor)
}
