// Package probe measures how often the components of a control plane are online: each apiserver by its own address,
// etcd through the apiservers, the scheduler and the controller-manager by their Leases.
//
// A probe that fails while the prober itself may be cut off counts against no component; nor does one of an address that
// never answered, because apiservers may publish addresses that others cannot reach.
//
// It also counts the throttled requests of tenants, and reads the firing alerts of an Alertmanager.
package probe

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/chore"
)

const (
	interval    = 5 * time.Second
	limit       = 2 * time.Second
	offlineFrom = 3 // failed probes in a row
	findEvery   = time.Minute
	maxServers  = 32
	maxBody     = 64 << 10
	unsaved     = 24 * 60 * (2*maxServers + 2) // counts kept while they cannot be stored
)

// Apiservers is the access to the apiservers.
type Apiservers interface {
	// Configured returns the address that the program itself uses, host:port.
	Configured() string
	// Addresses returns the address of each apiserver, host:port.
	Addresses(ctx context.Context) ([]string, error)
	// At returns a client that connects to one address, and the URL of a path there.
	At(address, path string) (client *http.Client, url string, err error)
}

// Leaders reports whether a leader renews its Lease; known is false if that cannot be told.
type Leaders interface {
	Renewed(lease string, now time.Time) (renewed, known bool)
}

// result is the result of one probe.
type result int

const (
	good result = iota
	bad
	blind // it does not count
)

// Count are the probes of one minute.
type Count struct {
	Minute    time.Time
	Component string
	Instance  string
	Good, Bad int
	Blind     int
}

// State is a component's present state.
type State struct {
	Component string    `json:"component"`
	Instance  string    `json:"instance"`
	State     string    `json:"state"` // online, offline, or unknown
	Since     time.Time `json:"since"`
	Why       string    `json:"why,omitempty"` // the last failure
}

// The states of a component.
const (
	Online  = "online"
	Offline = "offline"
	Unclear = "unknown"
)

type instance struct {
	State
	reached bool // it was online once: before that, its address may be one that cannot be reached from here
	failed  int  // probes in a row
	probed  time.Time
	now     Count
}

// Prober probes the components. Its zero value is not ready: use New.
type Prober struct {
	servers Apiservers
	leaders Leaders
	log     *slog.Logger

	mu        sync.Mutex // guards the fields below
	instances map[[2]string]*instance
	counts    []Count // complete minutes, not taken yet
}

// New returns a prober.
func New(servers Apiservers, leaders Leaders, log *slog.Logger) *Prober {
	return &Prober{servers: servers, leaders: leaders, log: log, instances: map[[2]string]*instance{}}
}

// Run probes until ctx ends.
func (p *Prober) Run(ctx context.Context) {
	var addresses []string
	find := func(ctx context.Context, _ time.Time) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		found, err := p.servers.Addresses(ctx)
		if err == nil {
			slices.Sort(found)
			addresses = found[:min(len(found), maxServers)]
		}
		return err
	}
	probe := func(ctx context.Context, _ time.Time) error {
		p.round(ctx, p.reachable(addresses), time.Now())
		return nil
	}
	chore.Repeat(ctx, p.log, interval, chore.Chore{Name: "find the apiservers", Every: findEvery, Do: find}, chore.Chore{Name: "probe", Do: probe})
}

// reachable adds the address that the program itself uses, unless one of the published addresses could be reached.
func (p *Prober) reachable(published []string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, address := range published {
		if i := p.instances[[2]string{"apiserver", address}]; i != nil && i.reached {
			return published
		}
	}
	if own := p.servers.Configured(); !slices.Contains(published, own) {
		return append(slices.Clone(published), own)
	}
	return published
}

// answer is what an apiserver said to a probe.
type answer struct {
	reached bool // something answered at the address, if only by refusing the connection
	status  int
	err     error
}

// round probes each component once.
func (p *Prober) round(ctx context.Context, addresses []string, now time.Time) {
	servers, etcds := make([]answer, len(addresses)), make([]answer, len(addresses))
	var all sync.WaitGroup
	for i, address := range addresses {
		all.Go(func() { servers[i] = p.ask(ctx, address, "/readyz") })
		all.Go(func() { etcds[i] = p.ask(ctx, address, "/readyz/etcd") })
	}
	all.Wait()
	if ctx.Err() != nil {
		return
	}
	reached := slices.ContainsFunc(servers, func(a answer) bool { return a.reached })
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, address := range addresses {
		outcome, why := judge(servers[i], reached)
		p.take("apiserver", address, outcome, why, now)
	}
	if len(addresses) > 0 {
		outcome, why := judgeEtcd(etcds)
		p.take("etcd", "by the apiservers", outcome, why, now)
	}
	for component, lease := range map[string]string{"scheduler": "kube-scheduler", "controller-manager": "kube-controller-manager"} {
		switch renewed, known := p.leaders.Renewed(lease, now); {
		case !known:
			p.take(component, "Lease "+lease, blind, "", now)
		case renewed:
			p.take(component, "Lease "+lease, good, "", now)
		default:
			p.take(component, "Lease "+lease, bad, "its Lease is not renewed", now)
		}
	}
	for key, i := range p.instances { // a removed apiserver is not offline
		if now.Sub(i.probed) > findEvery {
			p.keep(i.now)
			delete(p.instances, key)
		}
	}
}

// judge judges an apiserver. reached means that the prober has reached one of the apiservers in this round.
func judge(a answer, reached bool) (result, string) {
	switch {
	case a.status == http.StatusOK:
		return good, ""
	case a.status == http.StatusUnauthorized, a.status == http.StatusForbidden:
		return blind, "no right to get /readyz"
	case a.status != 0:
		return bad, http.StatusText(a.status)
	case reached:
		return bad, a.err.Error()
	}
	return blind, a.err.Error()
}

// judgeEtcd judges etcd by the apiservers that answer: it is online if one of them can use it.
func judgeEtcd(answers []answer) (outcome result, why string) {
	outcome = blind
	for _, a := range answers {
		switch a.status {
		case http.StatusOK:
			return good, ""
		case http.StatusInternalServerError:
			outcome, why = bad, "the apiservers' check of etcd fails"
		}
	}
	return outcome, why
}

func (p *Prober) ask(ctx context.Context, address, path string) answer {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	response, err := p.get(ctx, address, path, true)
	if err != nil {
		sent, ok := errors.AsType[*url.Error](err)
		isLost := !ok || sent.Timeout() || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
		return answer{reached: !isLost, err: err}
	}
	_, _ = io.CopyN(io.Discard, response.Body, maxBody)
	response.Body.Close()
	return answer{reached: true, status: response.StatusCode}
}

// get asks one apiserver; once over a connection of its own: an old one may be all that still works.
func (p *Prober) get(ctx context.Context, address, path string, once bool) (*http.Response, error) {
	client, url, err := p.servers.At(address, path)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Close = once
	return client.Do(request)
}

// take counts a probe.
func (p *Prober) take(component, name string, outcome result, why string, now time.Time) {
	key := [2]string{component, name}
	i := p.instances[key]
	if i == nil {
		i = &instance{State: State{Component: component, Instance: name, State: Unclear, Since: now}}
		p.instances[key] = i
	}
	if minute := now.Truncate(time.Minute); !i.now.Minute.Equal(minute) {
		p.keep(i.now)
		i.now = Count{Minute: minute, Component: component, Instance: name}
	}
	i.probed = now
	state := i.State.State
	if outcome == bad && !i.reached {
		outcome, why = blind, "never online from here: "+why
	}
	switch outcome {
	case good:
		i.now.Good++
		i.failed, state, i.Why, i.reached = 0, Online, "", true
	case bad:
		i.now.Bad++
		i.failed++
		i.Why = why
		if i.failed >= offlineFrom {
			state = Offline
		}
	case blind:
		i.now.Blind++
		i.failed, state, i.Why = 0, Unclear, why
	}
	if state != i.State.State {
		i.State.State, i.Since = state, now
		p.log.Info("state of a component changed", "component", component, "instance", name, "state", state, "why", i.Why)
	}
}

// keep makes the counts of complete minutes available to Take. It needs mu.
func (p *Prober) keep(counts ...Count) {
	for _, c := range counts {
		if !c.Minute.IsZero() { // of a new instance
			p.counts = append(p.counts, c)
		}
	}
	p.counts = p.counts[max(0, len(p.counts)-unsaved):]
}

// add adds a count of another reader, to be stored with the others.
func (p *Prober) add(c Count) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep(c)
}

// online returns the addresses of the apiservers that answer.
func (p *Prober) online() (addresses []string) {
	for _, s := range p.States() {
		if s.Component == "apiserver" && s.State == Online {
			addresses = append(addresses, s.Instance)
		}
	}
	return addresses
}

// Take returns the counts of complete minutes, once.
func (p *Prober) Take() []Count {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.counts
	p.counts = nil
	return taken
}

// Return gives back counts that could not be stored.
func (p *Prober) Return(counts []Count) {
	p.mu.Lock()
	defer p.mu.Unlock()
	newer := p.counts
	p.counts = counts
	p.keep(newer...)
}

// States returns the components' states, sorted.
func (p *Prober) States() (states []State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range p.instances {
		states = append(states, i.State)
	}
	slices.SortFunc(states, func(a, b State) int {
		return cmp.Or(cmp.Compare(a.Component, b.Component), cmp.Compare(a.Instance, b.Instance))
	})
	return states
}
