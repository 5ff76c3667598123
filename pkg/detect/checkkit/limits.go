package checkkit

// MaxNameservers is how many servers a resolver of libc uses (MAXNS in resolv.conf(5)); kubelet drops the others.
const MaxNameservers = 3

// MaxReported bounds texts of kubelet or the runtime in a message, in bytes.
const MaxReported = 300
