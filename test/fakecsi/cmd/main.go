// Command cmd runs a fake CSI driver beside a kubelet until a signal ends it. It removes its sockets on SIGTERM and
// leaves them behind when it is killed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/nodeagent/nodeagent/test/fakecsi"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "fakecsi:", err)
		os.Exit(1)
	}
}

func run() error {
	var o fakecsi.Options
	var knobs, publish, role, endpoint string
	flag.StringVar(&o.Name, "name", "fake.csi.example.com", "name of the driver")
	flag.StringVar(&o.KubeletRoot, "kubelet-root", "/var/lib/kubelet", "kubelet's root folder")
	flag.StringVar(&o.NodeID, "node-id", "", "what NodeGetInfo answers")
	flag.StringVar(&publish, "publish", string(fakecsi.PublishTmpfs), "tmpfs or bind")
	flag.StringVar(&knobs, "knobs", "{}", `how it fails, as JSON: {"notReady":true}`)
	flag.StringVar(&role, "role", "", "driver or registrar; both in one unless set")
	flag.StringVar(&endpoint, "kubelet-registration-path", "", "the driver's socket, as registrars are given it")
	exit := flag.Bool("exit-when-rejected", false,
		"end with an error when kubelet rejects the driver, as registrars do")
	flag.Parse()
	if err := json.Unmarshal([]byte(knobs), &o.Knobs); err != nil {
		return fmt.Errorf("-knobs: %w", err)
	}
	o.Publish, o.Role = fakecsi.Publish(publish), fakecsi.Role(role)

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	d, err := fakecsi.Start(ctx, o)
	if err != nil {
		return err
	}
	if endpoint != "" && endpoint != d.Endpoint() {
		return errors.Join(fmt.Errorf("-kubelet-registration-path: is not %s", d.Endpoint()), d.Stop())
	}
	for {
		select {
		case <-ctx.Done():
			return d.Stop()
		case s := <-d.Statuses():
			fmt.Printf("registered=%t error=%q\n", s.GetPluginRegistered(), s.GetError())
			if !s.GetPluginRegistered() && *exit {
				return errors.Join(fmt.Errorf("kubelet rejected the driver: %s", s.GetError()), d.Stop())
			}
		}
	}
}
