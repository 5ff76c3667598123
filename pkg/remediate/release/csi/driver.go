// Package csi gathers the evidence that a CSI driver, or a volume on this node, may still need a pod's mount, or the
// note that kubelet keeps of it. Silence is no evidence that a driver is gone.
package csi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/atomicfile"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	hostkubelet "github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/socket"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// A CSI driver is gone if the Node's CSINode does not name it and no process holds a socket of it below kubelet's
// plugin directories, in as many observations and for as long as the constants require, with none in between that shows
// it.
const (
	driverObservations = 3
	driverSpan         = 10 * time.Minute
	driverSpacing      = 3 * time.Minute  // observations that are closer together count as one
	driverGap          = 30 * time.Minute // observations before a longer gap prove nothing
	driverHistory      = 32               // observations kept
	driverMinAge       = 2 * time.Minute  // pods that terminate normally are gone earlier, and cause no observation
	driverFresh        = 10 * time.Second // how long an observation counts as current
	driverFile         = "csi-drivers.json"
)

// driverObservation is the evidence of all CSI drivers at one moment: it counts for each of them.
type driverObservation struct {
	At        finding.Timestamp `json:"at"`
	CSINode   string            `json:"csiNode"`         // UID of the object
	Named     []string          `json:"named,omitempty"` // drivers in it
	Answering []string          `json:"speak,omitempty"` // names reported on sockets
	// of sockets with a listener, and of mounts among the plugins
	InUse   []string `json:"places,omitempty"`
	Unknown []string `json:"unknown,omitempty"` // sockets with a listener that does not report its name
}

// evidenceOf returns the evidence that a driver may exist, or "".
func (l driverObservation) evidenceOf(driver string) string {
	same := func(name string) bool { return strings.EqualFold(name, driver) }
	switch {
	case slices.ContainsFunc(l.Named, same):
		return "the Node's CSINode names it"
	case slices.ContainsFunc(l.Answering, same):
		return "it answers on its socket"
	case len(l.Unknown) > 0:
		return fmt.Sprintf("a process listens on %s and does not report which driver it is", l.Unknown[0])
	}
	if i := slices.IndexFunc(l.InUse, func(place string) bool {
		return strings.Contains(strings.ToLower(place), strings.ToLower(driver))
	}); i >= 0 {
		return l.InUse[i] + " is in use"
	}
	return ""
}

// goneSince returns why observations, oldest first, do not prove that a driver is gone. The last one is the current
// one.
func goneSince(observations []driverObservation, driver string) string {
	if len(observations) == 0 {
		return "it was not observed yet"
	}
	last := observations[len(observations)-1]
	if last.At.Boot == "" {
		return "the boot ID of the machine is not known"
	}
	if why := last.evidenceOf(driver); why != "" {
		return why
	}
	first, counted, count := last, last, 1
	for _, observation := range slices.Backward(observations[:len(observations)-1]) {
		if observation.At.Boot != last.At.Boot || observation.CSINode != last.CSINode ||
			observation.evidenceOf(driver) != "" ||
			first.At.SinceBoot-observation.At.SinceBoot > driverGap || first.At.SinceBoot < observation.At.SinceBoot {
			break
		}
		if first = observation; counted.At.SinceBoot-observation.At.SinceBoot >= driverSpacing {
			counted, count = observation, count+1
		}
	}
	if span := last.At.SinceBoot - first.At.SinceBoot; count < driverObservations || span < driverSpan {
		return fmt.Sprintf(
			"it seems to be gone, but that was observed only %d times over %s; %d times over %s are required",
			count, span.Round(time.Second), driverObservations, driverSpan)
	}
	return ""
}

// Evidence reads the node for signs of CSI drivers and volumes. It keeps its observations of drivers in a file that the
// daemon and the command line share.
type Evidence struct {
	Dir           string // of the state
	Host          *host.Host
	Mutator       *mutate.Mutator
	SocketTimeout time.Duration // of a plugin; 0: the default

	mu      sync.Mutex        // guards the fields below
	fresh   driverObservation // the last observation of this process
	err     error             // of the last observation
	asked   finding.Timestamp
	failure string // of the last call of Observe; empty if it had none
}

// notGone returns why a driver is not proven to be gone. It observes the drivers now and adds the earlier observations.
func (w *Evidence) notGone(ctx context.Context, driver string) string {
	observation, err := w.current(ctx)
	if err != nil {
		return fmt.Sprintf("whether it is gone is not known: %v", err)
	}
	before, err := w.read()
	if err != nil {
		return fmt.Sprintf("for how long it has been gone is not known: %v", err)
	}
	return goneSince(append(before, observation), driver)
}

// current returns a current observation of the drivers.
func (w *Evidence) current(ctx context.Context) (driverObservation, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Host.Clock()
	if w.asked.Boot == now.Boot && w.asked.Boot != "" && now.SinceBoot-w.asked.SinceBoot < driverFresh {
		return w.fresh, w.err
	}
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w.fresh, w.err = w.readDrivers(ctx)
	w.asked = w.Host.Clock()
	return w.fresh, w.err
}

// Observe records an observation if a possible leftover may involve CSI and the last observation is old enough. An
// error comes again with each pass, and is logged once.
func (w *Evidence) Observe(ctx context.Context, report object.Report, log *slog.Logger) {
	failure := ""
	if err := w.observe(ctx, report); err != nil {
		failure = err.Error()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if failure != "" && failure != w.failure {
		log.Warn("observe CSI drivers failed", "err", failure)
	}
	w.failure = failure
}

// observe records an observation. A failed one is not recorded: it proves neither presence nor absence.
func (w *Evidence) observe(ctx context.Context, report object.Report) error {
	if !slices.ContainsFunc(report.Objects, func(o object.Assessment) bool {
		stays := o.Verdict == object.Leftover || o.Verdict == object.Candidate &&
			report.At.Since(o.FirstSeen) >= driverMinAge
		return stays && (o.Kind == object.PodDirectory || IsMount(o))
	}) {
		return nil
	}
	observations, err := w.read()
	if err != nil {
		observations = nil // an unreadable file is replaced, and is no proof until then
	}
	now := w.Host.Clock()
	if n := len(observations); n > 0 && observations[n-1].At.Boot == now.Boot &&
		now.SinceBoot-observations[n-1].At.SinceBoot < driverSpacing &&
		now.SinceBoot >= observations[n-1].At.SinceBoot {
		return nil
	}
	observation, err := w.current(ctx)
	if err != nil {
		return err
	}
	observations = append(observations, observation)
	return w.write(observations[max(0, len(observations)-driverHistory):])
}

func (w *Evidence) read() ([]driverObservation, error) {
	data, err := host.Files{}.Read(filepath.Join(w.Dir, driverFile))
	if err != nil {
		return nil, hosterr.Ignore(err, fs.ErrNotExist)
	}
	var observations []driverObservation
	if err := json.Unmarshal(data, &observations); err != nil {
		return nil, fmt.Errorf("%s: %w", driverFile, err)
	}
	return observations, nil
}

func (w *Evidence) write(observations []driverObservation) error {
	data, err := json.Marshal(observations)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(w.Dir, 0o700); err != nil {
		return err
	}
	return atomicfile.WriteData(filepath.Join(w.Dir, driverFile), data)
}

// readDrivers reads all signs of drivers. An error means that a part could not be read.
func (w *Evidence) readDrivers(ctx context.Context) (driverObservation, error) {
	observation := driverObservation{At: w.Host.Clock()}
	if w.Host.Plugins.Connect == nil {
		return observation, fmt.Errorf("sockets of plugins: %w", hosterr.ErrNotConfigured)
	}
	object, err := host.Ask(ctx, "apiserver", w.Host.Cluster.CSINode)
	if err != nil {
		return observation, fmt.Errorf("the Node's CSINode: %w", err)
	}
	if observation.CSINode = string(object.UID); observation.CSINode == "" {
		return observation, errors.New("the Node's CSINode has no UID")
	}
	for _, driver := range object.Spec.Drivers {
		observation.Named = append(observation.Named, driver.Name)
	}
	plugins, registry := path.Join(w.Host.Paths.KubeletRoot, "plugins"), w.Host.Paths.PluginRegistry
	s := socketSearch{Evidence: w, observation: &observation, known: map[string]bool{}}
	for _, dir := range []string{registry, plugins} { // a registrar also names the driver's own socket
		tree, err := w.Mutator.Plugins(ctx, dir)
		if err != nil {
			return observation, err
		}
		for _, entry := range tree {
			name := path.Join(dir, entry.Path)
			switch {
			case entry.Mount && dir == plugins && strings.HasPrefix(entry.Path, "kubernetes.io/"):
				// a volume that a driver staged: see staged
			case entry.Mount:
				observation.InUse = append(observation.InUse, name)
			case entry.Type == mutate.Socket:
				if err := s.file(ctx, name, dir == registry); err != nil {
					return observation, err
				}
			}
		}
	}
	listeners, err := socket.Listeners(ctx, w.Host, plugins, registry)
	if err != nil {
		return observation, fmt.Errorf("unix sockets of all processes: %w", err)
	}
	for _, l := range listeners {
		s.listener(l)
	}
	return observation, ctx.Err()
}

// socketSearch determines the owners of plugin sockets.
type socketSearch struct {
	*Evidence
	observation *driverObservation
	asked       int
	known       map[string]bool // paths of sockets whose driver is known
}

// maxDriverSockets bounds how many sockets are queried. A node has about ten.
const maxDriverSockets = 200

// file queries the listener of a socket.
func (s *socketSearch) file(ctx context.Context, name string, registrar bool) error {
	if s.asked++; s.asked > maxDriverSockets {
		return fmt.Errorf("more than %d sockets among the plugins", maxDriverSockets)
	}
	limited, cancel := context.WithTimeout(ctx, cmp.Or(s.SocketTimeout, 2*time.Second))
	defer cancel()
	plugins := s.Host.Plugins
	err := plugins.Connect(limited, name)
	if noListener(err) {
		return nil
	}
	s.observation.InUse = append(s.observation.InUse, name)
	if err == nil {
		err = s.ask(limited, name, registrar)
	}
	if err != nil && !s.known[name] {
		s.observation.Unknown = append(s.observation.Unknown, name)
	}
	return nil
}

// ask records the name that the listener of a socket reports.
func (s *socketSearch) ask(ctx context.Context, name string, registrar bool) (err error) {
	var info hostkubelet.PluginInfo
	if registrar {
		info, err = s.Host.Plugins.GetInfo(ctx, name)
	} else {
		info.Name, err = s.Host.Plugins.Name(ctx, name)
	}
	if err == nil && info.Name == "" {
		err = errors.New("no name")
	}
	if err != nil {
		return err
	}
	s.observation.Answering = append(s.observation.Answering, info.Name)
	s.known[name], s.known[path.Clean(info.Endpoint)] = true, true
	return nil
}

// noListener reports whether a connection error means that no process listens: the socket is gone, or was left behind.
func noListener(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// listener records a socket that has a listener according to a process, or to the kernel's table alone.
func (s *socketSearch) listener(l socket.Listener) {
	base := path.Base(l.Path)
	like := base == "csi.sock" || strings.HasSuffix(base, "-reg.sock")
	switch {
	case l.Inside && s.known[l.Path]:
	case l.Inside, l.PID == 0 && like: // its file is gone, or its owner is not known
		s.observation.Unknown = append(s.observation.Unknown, l.Path)
	case like, strings.Contains(l.Path, "kubelet"): // of a CSI controller, or a path in another mount namespace
		s.observation.InUse = append(s.observation.InUse, l.Path)
	}
}
