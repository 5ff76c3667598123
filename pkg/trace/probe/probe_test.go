package probe

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// servers are apiservers at addresses of this machine.
type servers map[string]string // address by name

func (s servers) Addresses(context.Context) (all []string, err error) {
	for _, address := range s {
		all = append(all, address)
	}
	return all, nil
}

func (s servers) At(address, path string) (*http.Client, string, error) {
	return http.DefaultClient, "http://" + address + path, nil
}

// answering is an apiserver that answers with a status; etcd is the status of its check of etcd.
func answering(t *testing.T, status, etcd int) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz/etcd" {
			w.WriteHeader(etcd)
			return
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// refusing is an address where nothing listens.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// silent accepts connections and never answers.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

type leaders map[string][2]bool

func (l leaders) Renewed(lease string, _ time.Time) (renewed, known bool) {
	return l[lease][0], l[lease][1]
}

// states returns "component of name: state", sorted, after some rounds.
func states(t *testing.T, s servers, l leaders, rounds int) string {
	t.Helper()
	p := New(s, l, slog.New(slog.DiscardHandler))
	addresses, _ := s.Addresses(t.Context())
	for i := range rounds {
		p.round(t.Context(), addresses, time.Date(2026, 1, 1, 0, 0, 5*i, 0, time.UTC))
	}
	var all []string
	for _, name := range []string{"a", "b", "c"} {
		for _, state := range p.States() {
			if state.Component == "apiserver" && state.Instance == s[name] {
				all = append(all, name+" "+state.State)
			}
		}
	}
	for _, state := range p.States() {
		if state.Component != "apiserver" {
			all = append(all, state.Component+" "+state.State)
		}
	}
	return strings.Join(all, ", ")
}

func TestStates(t *testing.T) {
	fine := answering(t, 200, 200)
	leading := leaders{"kube-scheduler": {true, true}, "kube-controller-manager": {true, true}}
	const others = ", controller-manager online, etcd online, scheduler online"
	for name, c := range map[string]struct {
		servers servers
		leaders leaders
		rounds  int
		want    string
	}{
		"all well":              {servers{"a": fine}, leading, 1, "a online" + others},
		"one of three is dead":  {servers{"a": fine, "b": answering(t, 200, 200), "c": refusing(t)}, leading, 3, "a online, b online, c offline" + others},
		"two failures are none": {servers{"a": fine, "b": refusing(t)}, leading, 2, "a online, b unknown" + others},
		"one hangs":             {servers{"a": fine, "b": silent(t)}, leading, 3, "a online, b offline" + others},
		"one is not ready":      {servers{"a": fine, "b": answering(t, 500, 200)}, leading, 3, "a online, b offline" + others},
		"no right":              {servers{"a": answering(t, 403, 403)}, leading, 3, "a unknown, controller-manager online, etcd unknown, scheduler online"},
		"the only one, refuses": {servers{"a": refusing(t)}, leading, 3, "a offline, controller-manager online, etcd unknown, scheduler online"},
		"cut off, or hanging":   {servers{"a": silent(t)}, leaders{}, 3, "a unknown, controller-manager unknown, etcd unknown, scheduler unknown"},
		"etcd is away":          {servers{"a": answering(t, 500, 500)}, leading, 3, "a offline, controller-manager online, etcd offline, scheduler online"},
		"etcd is away for one":  {servers{"a": answering(t, 500, 500), "b": fine}, leading, 3, "a offline, b online" + others},
		"scheduler is dead": {servers{"a": fine}, leaders{"kube-scheduler": {false, true}, "kube-controller-manager": {true, true}}, 3,
			"a online, controller-manager online, etcd online, scheduler offline"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := states(t, c.servers, c.leaders, c.rounds); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// Probes are counted by minute, each once, and also if they cannot be stored for some time.
func TestCounts(t *testing.T) {
	s := servers{"a": answering(t, 200, 200)}
	p := New(s, leaders{}, slog.New(slog.DiscardHandler))
	for i := range 24 {
		p.round(t.Context(), []string{s["a"]}, time.Date(2026, 1, 1, 0, 0, 5*i, 0, time.UTC))
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
	// An apiserver that was removed is not offline.
	p.round(t.Context(), nil, time.Date(2026, 1, 1, 0, 10, 0, 0, time.UTC))
	for _, state := range p.States() {
		if state.Component == "apiserver" {
			t.Errorf("%+v", state)
		}
	}
}
