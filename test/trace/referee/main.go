// Command referee computes the verdict of each act of a pod from an audit log of the apiserver and from the definitions
// of stages and verdicts alone. It shares no code with tracecenter, whose verdicts it checks.
//
// The log needs level RequestResponse for pods and their subresources, because only responses have the UID, and level
// Request or higher for Events, pods/binding and pods/eviction.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

func main() {
	promised := flag.Duration("promised", time.Minute, "time within which a pod must be delivered")
	exclude := flag.String("exclude-namespaces", "", "namespaces whose pods are excluded, separated by commas")
	flag.Parse()
	if err := run(flag.Args(), *promised, strings.Split(*exclude, ","), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "referee:", err)
		os.Exit(1)
	}
}

func run(logs []string, promised time.Duration, exclude []string, out io.Writer) error {
	if len(logs) == 0 {
		return fmt.Errorf("no audit log: name at least one")
	}
	g := newGame(exclude)
	for _, name := range logs {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		err = g.read(file)
		if err := file.Close(); err != nil {
			return err
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	encoder := json.NewEncoder(out)
	for _, v := range g.verdicts(promised) {
		if err := encoder.Encode(v); err != nil {
			return err
		}
	}
	return nil
}
