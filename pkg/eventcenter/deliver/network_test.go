package deliver_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
)

// A receiver built with the CloudEvents SDK understands all modes over a real connection and can verify events. An https
// target is trusted by the authority that the operator names, and by no other.
func TestForeignReceiver(t *testing.T) {
	for _, mode := range []event.Mode{event.Batch, event.Structured, event.Binary} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			c := &receiver{}
			server := httptest.NewTLSServer(c)
			defer server.Close()
			settings := anywhereAt(server.URL, "127.0.0.0/8")
			file := filepath.Join(t.TempDir(), "ca.pem")
			must(t, os.WriteFile(file, []byte("no certificate"), 0o600))
			settings.Targets[0].CAFile = file
			k := newKit(t, settings, nil)
			k.add(deliver.Subscription{URL: server.URL + "/hook?a=b", Mode: mode})
			k.append("x", "y", "x", "z", "x")
			k.awaitProblem("no certificate in it")
			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
			must(t, os.WriteFile(file, ca, 0o600))
			eventually(t, "five events", func() bool { return len(c.got()) >= 5 })
			c.check(k)
			if mode == event.Batch && !c.batched {
				t.Error("no batch")
			}
		})
	}
}

// No redirect is followed, wherever it leads.
func TestRedirect(t *testing.T) {
	simulate(t, hooks(), func(t *testing.T, k *kit, c *receiver) {
		c.answers(func(w http.ResponseWriter, r *http.Request, _ []cloudevents.Event) int {
			if r.URL.String() != hookURL {
				t.Errorf("the redirect to %s was followed", r.URL)
			}
			w.Header().Set("Location", "https://other.example.com/a")
			return http.StatusPermanentRedirect
		})
		k.add(deliver.Subscription{})
		k.append("x")
		time.Sleep(10 * time.Minute)
		if s := k.status(); !strings.Contains(s.Problem, "redirects are not followed") {
			t.Errorf("%+v", s)
		}
		c.answers(nil)
		time.Sleep(time.Hour)
		c.check(k)
	})
}

// samePort listens at 127.0.0.1 and 127.0.0.2 on one port that no other program has at either.
func samePort(t *testing.T) (first, second net.Listener, port string) {
	t.Helper()
	for {
		first, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		_, port, _ = net.SplitHostPort(first.Addr().String())
		second, err = net.Listen("tcp", "127.0.0.2:"+port)
		if err == nil {
			return first, second, port
		}
		_ = first.Close()
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
}

// A name that resolved to a permitted address when it was checked, and to this machine's own when it is connected to,
// leads nowhere: each connection checks its own address.
func TestRebinding(t *testing.T) {
	own, other, port := samePort(t)
	victim := &httptest.Server{Listener: own, Config: &http.Server{
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			t.Error("the subscription has reached this machine's own server")
		})}}
	victim.Start()
	defer victim.Close()
	c := &receiver{}
	server := &httptest.Server{Listener: other, Config: &http.Server{Handler: c}}
	server.Start()
	defer server.Close()

	var address atomic.Pointer[netip.Addr]
	address.Store(new(netip.MustParseAddr("127.0.0.2")))
	k := newKit(t, anywhereAt("http://hooks.example.com:"+port, "127.0.0.2/32"), nil)
	k.stop()
	k.config.Resolver = resolver(t, &address)
	k.start()
	k.add(deliver.Subscription{URL: "http://hooks.example.com:" + port})
	k.append("x")
	eventually(t, "one event", func() bool { return len(c.got()) == 1 })
	for i, own := range []string{"127.0.0.1", "::ffff:127.0.0.1"} {
		eventually(t, "no problem", func() bool { return k.status().Problem == "" })
		address.Store(new(netip.MustParseAddr(own)))
		server.CloseClientConnections()
		k.append("x")
		k.awaitProblem("127.0.0.1 is not permitted")
		address.Store(new(netip.MustParseAddr("127.0.0.2")))
		eventually(t, "the next", func() bool { return slices.Contains(c.got(), fmt.Sprint("x-", i+2)) })
	}
}

// resolver asks a name server that answers every question with this address: A with an IPv4 address, AAAA with one that
// is mapped into IPv6.
func resolver(t *testing.T, address *atomic.Pointer[netip.Addr]) *net.Resolver {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		for buffer := make([]byte, 512); ; {
			n, from, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buffer[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			q, address := m.Questions[0], address.Load()
			answer := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}}
			switch {
			case q.Type == dnsmessage.TypeA && address.Is4():
				answer.Body = &dnsmessage.AResource{A: address.As4()}
			case q.Type == dnsmessage.TypeAAAA && address.Is4In6():
				answer.Body = &dnsmessage.AAAAResource{AAAA: address.As16()}
			}
			if answer.Body != nil {
				m.Answers = []dnsmessage.Resource{answer}
			}
			text, _ := m.Pack() // made of an unpacked question
			_, _ = server.WriteTo(text, from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// Unless the operator permits it, no target is this machine, a neighbour on the link, or a cloud's metadata service, in
// whatever spelling.
func TestAddresses(t *testing.T) {
	anywhere, private := anywhereAt("http://a").Targets[0], anywhereAt("http://a", "10.0.0.0/8").Targets[0]
	for _, text := range []string{"127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1",
		"fe80::1%eth0", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "0.0.0.0", "::",
		"224.0.0.1", "ff02::1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254",
		"255.255.255.255", "::7f00:1", "0.1.2.3"} {
		if address := netip.MustParseAddr(text); deliver.Permits(anywhere, address) || deliver.Permits(private, address) {
			t.Errorf("%s is permitted", text)
		}
	}
	for text, want := range map[string][2]bool{"10.0.0.1": {true, true}, "192.168.7.7": {true, false},
		"fd12::1": {true, false}, "198.51.100.1": {true, false}, "::ffff:10.1.2.3": {true, true}} {
		address := netip.MustParseAddr(text)
		if got := [2]bool{deliver.Permits(anywhere, address), deliver.Permits(private, address)}; got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	for _, url := range []string{"http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "https://169.254.169.254"} {
		k := newKit(t, anywhereAt(url), nil)
		k.add(deliver.Subscription{URL: url})
		k.append("x")
		k.awaitProblem("is not permitted")
		k.stop()
	}
}
