package probe

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// apiserver is an apiserver at an address of this machine: first it answers, then it behaves as a test wants.
type apiserver struct {
	net.Listener
	mu           sync.Mutex
	status, etcd int
	hangs        bool
}

func newApiserver(t *testing.T) *apiserver {
	t.Helper()
	a := &apiserver{status: http.StatusOK, etcd: http.StatusOK}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		status, etcd, hangs := a.status, a.etcd, a.hangs
		a.mu.Unlock()
		if hangs {
			<-r.Context().Done()
			return
		}
		if r.URL.Path == "/readyz/etcd" {
			status = etcd
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	a.Listener = server.Listener
	return a
}

func (a *apiserver) address() string { return a.Addr().String() }

// The behaviours.
func fine(*apiserver)      {}
func refuses(a *apiserver) { _ = a.Close() }
func hangs(a *apiserver)   { a.set(func() { a.hangs = true }) }

func answers(status, etcd int) func(*apiserver) {
	return func(a *apiserver) { a.set(func() { a.status, a.etcd = status, etcd }) }
}

func (a *apiserver) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// direct connects to addresses.
type direct struct{}

func (direct) Configured() string { return "127.0.0.1:1" }

func (direct) Addresses(context.Context) ([]string, error) { return nil, nil }

func (direct) At(address, path string) (*http.Client, string, error) {
	return http.DefaultClient, "http://" + address + path, nil
}

type leaders map[string][2]bool

func (l leaders) Renewed(lease string, _ time.Time) (renewed, known bool) {
	return l[lease][0], l[lease][1]
}

// states returns "component state", sorted, after a round in which all is well and some rounds of a behaviour.
func states(t *testing.T, behaviours []func(*apiserver), before, l leaders, rounds int) string {
	t.Helper()
	changing := &switching{before}
	p := New(direct{}, changing, slog.New(slog.DiscardHandler))
	var addresses []string
	var all []*apiserver
	for range behaviours {
		a := newApiserver(t)
		addresses, all = append(addresses, a.address()), append(all, a)
	}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if before != nil {
		p.round(t.Context(), addresses, at)
	}
	for i, behave := range behaviours {
		behave(all[i])
	}
	changing.leaders = l
	for i := range rounds {
		p.round(t.Context(), addresses, at.Add(time.Duration(i+1)*interval))
	}
	var got []string
	for _, address := range addresses {
		for _, state := range p.States() {
			if state.Component == "apiserver" && state.Instance == address {
				got = append(got, state.State)
			}
		}
	}
	for _, state := range p.States() {
		if state.Component != "apiserver" {
			got = append(got, state.Component+" "+state.State)
		}
	}
	return strings.Join(got, ", ")
}

type switching struct{ leaders }

func TestStates(t *testing.T) {
	leading := leaders{"kube-scheduler": {true, true}, "kube-controller-manager": {true, true}}
	const others = ", controller-manager online, etcd online, scheduler online"
	const noEtcd = ", controller-manager online, etcd unknown, scheduler online"
	servers := func(behaviours ...func(*apiserver)) []func(*apiserver) { return behaviours }
	for name, c := range map[string]struct {
		servers         []func(*apiserver)
		before, leaders leaders
		rounds          int
		want            string
	}{
		"all well":              {servers(fine), leading, leading, 1, "online" + others},
		"one of three is dead":  {servers(fine, fine, refuses), leading, leading, 3, "online, online, offline" + others},
		"two failures are none": {servers(fine, refuses), leading, leading, 2, "online, online" + others},
		"one hangs":             {servers(fine, hangs), leading, leading, 3, "online, offline" + others},
		"one is not ready":      {servers(fine, answers(500, 200)), leading, leading, 3, "online, offline" + others},
		"no right":              {servers(answers(403, 403)), nil, leading, 3, "unknown" + noEtcd},
		"the only one, refuses": {servers(refuses), leading, leading, 3, "offline" + noEtcd},
		"never reached":         {servers(fine, refuses), nil, leading, 3, "online, unknown" + others},
		"the only one, never":   {servers(refuses), nil, leading, 3, "unknown" + noEtcd},
		"cut off, or hanging":   {servers(hangs), leading, leaders{}, 3, "unknown, controller-manager unknown, etcd unknown, scheduler unknown"},
		"etcd is away":          {servers(answers(500, 500)), leading, leading, 3, "offline, controller-manager online, etcd offline, scheduler online"},
		"etcd is away for one":  {servers(answers(500, 500), fine), leading, leading, 3, "offline, online" + others},
		"the scheduler is dead": {servers(fine), leading, leaders{"kube-scheduler": {false, true}, "kube-controller-manager": {true, true}}, 3, "online, controller-manager online, etcd online, scheduler offline"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := states(t, c.servers, c.before, c.leaders, c.rounds); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// Probes are counted by minute, each once, and also if they cannot be stored for some time.
func TestCounts(t *testing.T) {
	a := newApiserver(t)
	p := New(direct{}, leaders{}, slog.New(slog.DiscardHandler))
	for i := range 24 {
		p.round(t.Context(), []string{a.address()}, time.Date(2026, 1, 1, 0, 0, 5*i, 0, time.UTC))
	}
	p.Return(p.Take())
	got := map[string]int{}
	for _, c := range p.Take() {
		got[fmt.Sprintf("%s %s %d/%d/%d", c.Minute.Format("15:04"), c.Component, c.Good, c.Bad, c.Blind)]++
	}
	if len(got) != 4 || got["00:00 apiserver 12/0/0"] != 1 || got["00:00 etcd 12/0/0"] != 1 || got["00:00 scheduler 0/0/12"] != 1 {
		t.Errorf("%v", got)
	}
	if left := p.Take(); len(left) != 0 {
		t.Errorf("taken twice: %v", left)
	}
	// A removed apiserver is not offline.
	p.round(t.Context(), nil, time.Date(2026, 1, 1, 0, 10, 0, 0, time.UTC))
	for _, state := range p.States() {
		if state.Component == "apiserver" {
			t.Errorf("%+v", state)
		}
	}
}

// If no published address can be reached, the configured one is probed as well.
func TestConfiguredAddress(t *testing.T) {
	a, unreachable := newApiserver(t), newApiserver(t)
	refuses(unreachable)
	p := New(direct{}, leaders{}, slog.New(slog.DiscardHandler))
	if got := p.reachable([]string{a.address()}); len(got) != 2 {
		t.Errorf("at first: %v", got)
	}
	p.round(t.Context(), []string{a.address()}, time.Now())
	if got := p.reachable([]string{unreachable.address(), a.address()}); len(got) != 2 {
		t.Errorf("one is reached: %v", got)
	}
	if got := p.reachable([]string{unreachable.address()}); len(got) != 2 || got[1] != "127.0.0.1:1" {
		t.Errorf("none is reached: %v", got)
	}
}
