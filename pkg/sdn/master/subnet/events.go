package subnet

// Reasons of Events. People and alerts match them: they don't change.
const (
	reasonNoAddress = "NodeAddressUnusable" // the node has no address that others can tunnel to
	reasonNoSubnet  = "NoHostSubnet"        // the node can't be given one
	reasonInvalid   = "InvalidHostSubnet"   // it has one that can't be used
)
