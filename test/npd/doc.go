// Package npd holds tests that run node-problem-detector's own code beside the agent's on the same files, lines and
// plugins. It is a separate module: the agent itself depends on no more of node-problem-detector than its
// configuration types.
package npd
