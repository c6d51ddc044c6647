// Parser of a rollout's stream (docs/how-to/rollouts.md): records of two lengths, JSON, and a float32 payload.

export const MEDIA_TYPE = "application/vnd.turbofno.frames";

// Yields { event, ..., data } as they arrive, data a Float32Array if there is a payload. It awaits `gate()` before each
// read: the server soon stops computing while the client does not read.
export async function* events(response, gate) {
  const reader = response.body.getReader();
  let buffer = new Uint8Array(0);
  const have = async (count) => {
    while (buffer.length < count) {
      await gate();
      const { value, done } = await reader.read();
      if (done) return false;
      const joined = new Uint8Array(buffer.length + value.length);
      joined.set(buffer);
      joined.set(value, buffer.length);
      buffer = joined;
    }
    return true;
  };
  while (await have(8)) {
    const lengths = new DataView(buffer.buffer, buffer.byteOffset, 8);
    const [text, payload] = [lengths.getUint32(0, true), lengths.getUint32(4, true)];
    const end = 8 + text + payload;
    if (!(await have(end))) break;
    const event = JSON.parse(new TextDecoder().decode(buffer.subarray(8, 8 + text)));
    // Copied, because a Float32Array must start at a multiple of four.
    if (payload) event.data = new Float32Array(buffer.slice(8 + text, end).buffer);
    buffer = buffer.subarray(end);
    yield event;
  }
}
