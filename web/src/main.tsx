import { render } from "preact";
import { App } from "./app.tsx";
import { listen } from "./keys.tsx";
import { follow } from "./route.ts";
import { wear } from "./theme.ts";
import "./style.css";

wear();
document.addEventListener("click", follow);
document.addEventListener("keydown", listen);
const place = document.getElementById("app");
if (place) render(<App />, place);
