package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/atomicfile"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// LayoutEvery is how often the daemon checks whether kubelet still uses the paths that the agent started with.
const LayoutEvery = time.Minute

// layout is the layout of this node from the flags and files of the running kubelet. It is stored for the case that
// kubelet is dead: its flags are gone then, and a starting agent would use the wrong paths. Only the layout of a
// trusted kubelet is stored, and verify checks it again on load.
type layout struct {
	Paths           host.Paths
	NodeName        string
	KubeconfigNamed bool
	Node            distro.Node
}

func layoutFile(cfg config.Config) string { return filepath.Join(cfg.StateDir, "layout.json") }

// discoverLayout returns the layout of the node, of now or of when kubelet last ran.
func discoverLayout(files host.Files, cfg config.Config) (discover.Discovery, error) {
	found, err := discover.Discover(files, cfg.Paths)
	if err != nil || found.KubeletRunning {
		return found, err
	}
	known, err := loadLayout(files, layoutFile(cfg))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			found.Notes = append(found.Notes, fmt.Sprintf("the stored paths of kubelet are not "+
				"trusted: %v", err))
		}
		return found, nil // never seen running, or not readable: use the files on disk
	}
	known.Paths.KubeletElsewhere = false // only the configuration may set it
	found.Paths, found.NodeName, found.KubeletInstalled = known.Paths, known.NodeName, true
	found.KubeconfigNamed, found.Node, found.Doubts = known.KubeconfigNamed, known.Node, nil
	discover.Override(&found.Paths, cfg.Paths)
	found.Notes = append(found.Notes,
		"kubelet does not run: its paths are those of when it last ran")
	return found, nil
}

// KeepLayout stores the layout of the running kubelet. If that fails, the layout is unknown while kubelet is dead; no
// other function depends on it.
func (d *Clients) KeepLayout(cfg config.Config) {
	l := layout{d.found.Paths, d.found.NodeName, d.found.KubeconfigNamed, d.found.Node}
	if !d.found.KubeletRunning || len(d.found.Doubts) > 0 || l.verify(d.Host.Files) != nil {
		return
	}
	data, err := json.Marshal(l)
	if err != nil {
		return
	}
	name := layoutFile(cfg)
	if old, err := readLayout(name); err == nil && string(old) == string(data) {
		return
	}
	_ = atomicfile.WriteData(name, data)
}

// maxLayout bounds the file, in bytes.
const maxLayout = 64 << 10

func loadLayout(files host.Files, name string) (layout, error) {
	var l layout
	data, err := readLayout(name)
	if err != nil {
		return l, err
	}
	if err := json.Unmarshal(data, &l); err != nil {
		return l, fmt.Errorf("%s: %w", name, err)
	}
	if l.NodeName == "" {
		return l, fmt.Errorf("%s: no node name", name)
	}
	if err := l.verify(files); err != nil {
		return l, fmt.Errorf("%s: %w", name, err)
	}
	return l, nil
}

// readLayout reads the file. It refuses a file that a user other than the agent's own could write.
func readLayout(name string) ([]byte, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() || !owned.UID(stat.Uid) || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s: mode %s: not a file of root's alone", name, info.Mode())
	}
	data, err := io.ReadAll(io.LimitReader(file, maxLayout+1))
	if err == nil && len(data) > maxLayout {
		err = fmt.Errorf("%s: larger than %d bytes", name, maxLayout)
	}
	return data, err
}

// verify returns an error for the first path of the agent that users other than root can change. A missing path is
// accepted: it may come back.
func (l layout) verify(files host.Files) error {
	p := l.Paths
	for _, path := range append([]string{p.KubeletRoot, p.KubeletConfig, p.Kubeconfig, p.KubeletCAFile,
		p.PluginRegistry, p.StaticPods,
		p.ContainerdState, p.ContainerdRoot, p.CRISocket, p.ContainerdSocket, p.CNIConfDir, p.CNICacheDir,
		p.CNINetworksDir}, p.CNIBinDirs...) {
		if path == "" {
			continue
		}
		if _, err := files.CheckOwned(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// layoutChecks is how many layout checks in a row are skipped while the same processes run.
const layoutChecks = 9

// layoutSeen names the kubelet and runtime processes whose layout is known. Both read their files when they start; the
// checks that are not skipped find all other changes.
type layoutSeen struct {
	processes [2]processIdentity
	left      int
}

type processIdentity struct {
	pid   int
	start uint64
}

// LayoutMoved reports whether the running kubelet's layout differs from that of when the host was opened.
func (d *Clients) LayoutMoved(ctx context.Context, cfg config.Config) bool {
	processes, known := d.layoutProcesses(ctx)
	if known && processes == d.layout.processes && d.layout.left > 0 {
		d.layout.left--
		return false
	}
	moved := d.discoverAgain(cfg)
	if d.layout = (layoutSeen{processes: processes}); known && !moved && len(d.found.Doubts) == 0 {
		d.layout.left = layoutChecks
	}
	return moved
}

func (d *Clients) layoutProcesses(ctx context.Context) (seen [2]processIdentity, known bool) {
	if d.Host.Kubelet.Process == nil || d.Host.Runtime.Process == nil {
		return seen, false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	kubelet, kubeletErr := d.Host.Kubelet.Process()
	runtime, runtimeErr := discover.RuntimeProcess(ctx, d.Host)
	for i, p := range []host.Process{kubelet, runtime} {
		seen[i] = processIdentity{p.PID, p.StartTime}
	}
	return seen, kubeletErr == nil && runtimeErr == nil
}

func (d *Clients) discoverAgain(cfg config.Config) bool {
	now, err := discover.Discover(d.Host.Files, cfg.Paths)
	return err == nil && now.KubeletRunning &&
		(now.NodeName != d.found.NodeName || now.KubeletInstalled != d.found.KubeletInstalled ||
			now.Node != d.found.Node || !now.Doubts.Equal(d.found.Doubts) ||
			!reflect.DeepEqual(now.Paths, d.found.Paths))
}
