package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/nodeagent/nodeagent/internal/config"
	"github.com/nodeagent/nodeagent/internal/host"
)

// layoutEvery is how often the daemon looks whether kubelet is laid out otherwise than when it started.
const layoutEvery = time.Minute

// layout is how the running kubelet said that this node is laid out. It is kept for the day on which kubelet is dead: its
// flags die with it, and an agent that is started then would look in the wrong places.
type layout struct {
	Paths    host.Paths
	NodeName string
}

func layoutFile(cfg config.Config) string { return filepath.Join(cfg.StateDir, "layout.json") }

// discover finds out how the node is laid out, now or when kubelet last ran.
func discover(files host.Files, cfg config.Config) (host.Discovery, error) {
	found, err := host.Discover(files, cfg.Paths)
	if err != nil || found.KubeletRunning {
		return found, err
	}
	data, err := os.ReadFile(layoutFile(cfg))
	var known layout
	if err != nil || json.Unmarshal(data, &known) != nil || known.NodeName == "" {
		return found, nil // never seen running, or nobody can say: what is on disk must do
	}
	found.Paths, found.NodeName, found.KubeletInstalled = known.Paths, known.NodeName, true
	host.Override(&found.Paths, cfg.Paths)
	found.Notes = append(found.Notes, "kubelet does not run: the node is taken to be laid out as it said when it last did")
	return found, nil
}

// keepLayout stores how the running kubelet says that the node is laid out. Not stored is not known on a bad day, no more.
func (d *Door) keepLayout(cfg config.Config) {
	if !d.found.KubeletRunning {
		return
	}
	data, err := json.Marshal(layout{d.found.Paths, d.found.NodeName})
	if err != nil {
		return
	}
	name := layoutFile(cfg)
	if old, err := os.ReadFile(name); err == nil && string(old) == string(data) {
		return
	}
	if os.WriteFile(name+".new", data, 0o600) == nil {
		_ = os.Rename(name+".new", name)
	}
}

// layoutMoved reports whether the running kubelet says something else now than when the door was opened.
func (d *Door) layoutMoved(cfg config.Config) bool {
	now, err := host.Discover(d.Host.Files, cfg.Paths)
	return err == nil && now.KubeletRunning &&
		(now.NodeName != d.found.NodeName || now.KubeletInstalled != d.found.KubeletInstalled || !reflect.DeepEqual(now.Paths, d.found.Paths))
}
