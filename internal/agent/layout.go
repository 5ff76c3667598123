package agent

import (
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

	"github.com/nodeagent/nodeagent/internal/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// LayoutEvery is how often the daemon looks whether kubelet is laid out otherwise than when it started.
const LayoutEvery = time.Minute

// layout is how the running kubelet said that this node is laid out. It is kept for the day on which kubelet is dead:
// its flags die with it, and an agent that is started then would look in the wrong places. Only what a believed
// kubelet said is kept, and it is tried again when it is loaded: see believe.
type layout struct {
	Paths           host.Paths
	NodeName        string
	KubeconfigNamed bool
}

func layoutFile(cfg config.Config) string { return filepath.Join(cfg.StateDir, "layout.json") }

// discoverLayout returns how the node is laid out, now or when kubelet last ran.
func discoverLayout(files host.Files, cfg config.Config) (discover.Discovery, error) {
	found, err := discover.Discover(files, cfg.Paths)
	if err != nil || found.KubeletRunning {
		return found, err
	}
	known, err := loadLayout(files, layoutFile(cfg))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			found.Notes = append(found.Notes, fmt.Sprintf("how kubelet last said that the node is laid out is not "+
				"believed: %v", err))
		}
		return found, nil // never seen running, or nobody can say: what is on disk must do
	}
	known.Paths.KubeletElsewhere = false // only the configuration says so
	found.Paths, found.NodeName, found.KubeletInstalled = known.Paths, known.NodeName, true
	found.KubeconfigNamed = known.KubeconfigNamed
	discover.Override(&found.Paths, cfg.Paths)
	found.Notes = append(found.Notes,
		"kubelet does not run: the node is taken to be laid out as it said when it last did")
	return found, nil
}

// KeepLayout stores how the running kubelet says that the node is laid out. Not stored is not known on a bad day, no
// more.
func (d *Clients) KeepLayout(cfg config.Config) {
	l := layout{d.found.Paths, d.found.NodeName, d.found.KubeconfigNamed}
	if !d.found.KubeletRunning || l.believe(d.Host.Files) != nil {
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
	_ = writeLayout(name, data)
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
		return l, fmt.Errorf("%s: no name of the node", name)
	}
	if err := l.believe(files); err != nil {
		return l, fmt.Errorf("%s: %w", name, err)
	}
	return l, nil
}

// readLayout reads what only the agent's own user can have written.
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
		return nil, fmt.Errorf("%s: mode %s: not a file that is root's alone", name, info.Mode())
	}
	data, err := io.ReadAll(io.LimitReader(file, maxLayout+1))
	if err == nil && len(data) > maxLayout {
		err = fmt.Errorf("%s: larger than %d bytes", name, maxLayout)
	}
	return data, err
}

func writeLayout(name string, data []byte) error {
	next := name + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(next, name)
}

// believe says which of the paths that the agent acts on is not root's alone. What is not there may come back.
func (l layout) believe(files host.Files) error {
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

// LayoutMoved reports whether the running kubelet says something else now than when the door was opened.
func (d *Clients) LayoutMoved(cfg config.Config) bool {
	now, err := discover.Discover(d.Host.Files, cfg.Paths)
	return err == nil && now.KubeletRunning &&
		(now.NodeName != d.found.NodeName || now.KubeletInstalled != d.found.KubeletInstalled ||
			!reflect.DeepEqual(now.Paths, d.found.Paths))
}
