package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// state is the memory of a lab between two commands. It is written before the first trace is made and removed last, so
// that Down always knows what existed before.
type state struct {
	NodeName      string            `json:"nodeName"`
	BinDir        string            `json:"binDir"`
	ContainerdDir string            `json:"containerdDir"`
	CRIODir       string            `json:"crioDir,omitempty"` // of CRI-O, if it is the runtime
	RuncDir       string            `json:"runcDir,omitempty"` // of runc, if it is not Debian's
	Repo          string            `json:"repo"`
	Part          string            `json:"part,omitempty"`   // which of two machines this is; empty: all on one
	Server        string            `json:"server,omitempty"` // the apiserver, if it is on another machine
	Ports         ports             `json:"ports"`
	Sysctls       map[string]string `json:"sysctls"` // values before the lab
	Absent        []string          `json:"absent"`  // folders outside the lab that did not exist before it
	Portmap       bool              `json:"portmap"` // somebody else's portmap chains existed before the lab
}

type ports struct {
	Etcd, EtcdPeer, APIServer, ControllerManager, Scheduler, Kubelet, KubeletHealth int
}

// sysctlNames are the sysctls that kubelet and the bridge plugin write.
var sysctlNames = []string{
	"net/ipv4/ip_forward", "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// foreignDirs are folders with compiled-in names that kubelet, containerd or libcni create outside the lab's folder.
// Each parent is before its children.
var foreignDirs = []string{
	"/var/log/containers",
	"/var/lib/cni", "/var/lib/cni/results",
	"/run/containerd", "/run/containerd/s",
	"/var/lib/kubelet", devicePlugins,
	"/run/mount", // of libmount, if systemd has not created it before
}

func stateFile(dir string) string { return filepath.Join(dir, "lab.json") }

func readState(dir string) (*state, error) {
	data, err := os.ReadFile(stateFile(dir))
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", stateFile(dir), err)
	}
	return &s, nil
}

func (s *state) write(dir string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(stateFile(dir), append(data, '\n'), 0o600)
}

// recordHost saves the state outside the lab's folder that the lab will change.
func (s *state) recordHost(ctx context.Context) error {
	s.Sysctls = map[string]string{}
	for _, name := range sysctlNames {
		data, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		s.Sysctls[name] = strings.TrimSpace(string(data))
	}
	s.Absent = nil
	for _, dir := range foreignDirs {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			s.Absent = append(s.Absent, dir)
		}
	}
	s.Portmap = portmapPresent(ctx)
	return nil
}

// devicePlugins is compiled into kubelet and ignores its --root-dir.
const devicePlugins = "/var/lib/kubelet/device-plugins"

// deviceFiles are the files of the lab's kubelet in devicePlugins, none if the folder existed before the lab.
func (s *state) deviceFiles() []string {
	if !slices.Contains(s.Absent, devicePlugins) {
		return nil
	}
	var files []string
	for _, name := range []string{"kubelet.sock", "kubelet_internal_checkpoint", "DEPRECATION"} {
		files = append(files, filepath.Join(devicePlugins, name))
	}
	return files
}

// lostSockets are those of shims without a record of containerd, because it was killed; none if their folder existed
// before the lab.
func (s *state) lostSockets() []string {
	const sockets = "/run/containerd/s"
	if !slices.Contains(s.Absent, sockets) {
		return nil
	}
	files, _ := filepath.Glob(sockets + "/*") // the pattern is well-formed
	return files
}

// otherKubelet reports whether this machine is a node of another cluster: a second kubelet would
// take over the socket of the first.
func otherKubelet(ctx context.Context) bool {
	return accepts("unix", filepath.Join(devicePlugins, "kubelet.sock"))(ctx) == nil
}

// restoreHost restores the state that recordHost saved. It removes folders only if they are empty.
func (s *state) restoreHost() error {
	var errs []error
	for name, want := range s.Sysctls {
		path := filepath.Join("/proc/sys", name)
		if got, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(got)) == want {
			continue
		}
		errs = append(errs, os.WriteFile(path, []byte(want), 0o644))
	}
	absent := slices.Clone(s.Absent)
	slices.Reverse(absent) // children first
	for _, dir := range absent {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// writeFile replaces a file in one step, so that a process that is killed meanwhile leaves the old file or the new one.
func writeFile(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temp, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = temp.Write(data)
	if err := errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}
